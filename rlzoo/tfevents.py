"""TensorBoard's event files, written directly: importing TensorBoard's own writer takes 0.2 s.

A file is a sequence of records, each a length, a protocol buffer `Event` and their CRC-32C sums. The few
messages that are needed are encoded by hand; the numbers below are the field numbers of TensorBoard's
`event.proto` and `summary.proto`. A test reads the files back with TensorBoard.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import time
from pathlib import Path

_FLOAT = struct.Struct("<f")
_LARGEST = 3.4e38


class EventFile:
    """Collects events in memory; `flush` appends them to a new file in `folder`.

    With `purge_step`, a run goes on: TensorBoard drops what earlier files say of that step and later ones.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        # TensorBoard reads the files of a folder in the order of their names.
        self.path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._pending: list[tuple[float, int, bytes | dict[str, float | None]]] = []
        self._header = _record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))
        if purge_step is not None:  # a SessionLog that says START
            self._add(purge_step, _bytes(7, _int(1, 1)))

    def scalars(self, step: int, values: dict[str, float | None]) -> None:
        """One event with a scalar for each tag, as a 32-bit float; None is left out."""
        self._add(step, values)

    def text(self, step: int, tag: str, markdown: str) -> None:
        """One event for TensorBoard's text page."""
        metadata = _bytes(9, _bytes(1, _bytes(1, b"text")))
        string_tensor = _bytes(8, _int(1, 7) + _bytes(8, markdown.encode()))
        self._add(step, _bytes(5, _bytes(1, _tag(tag) + metadata + string_tensor)))

    def _add(self, step: int, what: bytes | dict[str, float | None]) -> None:
        self._pending.append((time.time(), step, what))

    def flush(self) -> None:
        """Appends to the file. Encoding waits until now because it is faster for many events in a row."""
        if self._pending:
            records = [
                _record(_double(1, at) + _int(2, step) + (what if isinstance(what, bytes) else _summary(what)))
                for at, step, what in self._pending
            ]
            with self.path.open("ab") as file:
                file.write(b"".join([self._header, *records]))
            self._header = b""
            self._pending.clear()


def _summary(values: dict[str, float | None]) -> bytes:
    scalars = [
        _before_scalar(tag) + _FLOAT.pack(min(max(x, -_LARGEST), _LARGEST))
        for tag, x in values.items()
        if x is not None
    ]
    return _bytes(5, b"".join(scalars))


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _int(field: int, n: int) -> bytes:
    return _varint(field << 3) + _varint(n)


def _double(field: int, x: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", x)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _tag(tag: str) -> bytes:
    return _bytes(1, tag.encode())


@functools.cache
def _before_scalar(tag: str) -> bytes:
    """All of a summary's value but the 4 bytes of its float."""
    value = _tag(tag) + b"\x15"
    return _varint(1 << 3 | 2) + _varint(len(value) + _FLOAT.size) + value


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _crc_table() -> list[int]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_CRC = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    table = _CRC
    for byte in data:
        crc = table[crc & 0xFF ^ byte] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
