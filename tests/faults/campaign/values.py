"""Hostile values that several families use."""

from __future__ import annotations

from random import Random

NUMBERS = (
    "0", "-1", "1e400", "-1e400", "1e308", "1e-400", "nan", "inf", "-inf", "9" * 30, "0x10", "1_000", "1e3", "2.5",
    "--5", str(2**31), str(2**63), str(2**64), "-0", "1e-320", "٣", "½",
)  # fmt: skip
WORDS = (
    "", " ", "none", "true", "null", "~", "a" * 5000, "\x00", "\x1b[31mred\x1b[0m", "\n", "a\nb", "ü" * 50, "\ud800",
    "../../outside/precious.txt", "/dev/null", "/proc/self/mem", ".", "..", "-", "--", "--help", "%s%n", "{0}",
    "{{7*7}}", "$(touch CANARY)", "`touch CANARY`", "__import__('os').system('touch CANARY')", "os:system",
    "builtins:eval", "rlzoo:nothing", "nothing:at:all", ":", "a:", ":b", "rlzoo.core.system.errors:ConfigError",
    "linear:1:0", "linear:0:1e999", "linear:a:b", "linear:", "1;2", "[1,2]", "{}", "{'a': 1}", "key=value", "=",
    "<script>alert(1)</script>", "cuda", "cuda:99",
)  # fmt: skip
MOST = 2**26
"""Bytes of a file that is damaged, which an earlier attack may have replaced by a huge one."""


def scalar(rng: Random, canary: str) -> str:
    """A number or a word that nobody would give on purpose."""
    return rng.choice(NUMBERS if rng.random() < 0.4 else WORDS).replace("CANARY", canary)


def damaged(rng: Random, data: bytes) -> bytes:
    """The data with a random damage: bits, cuts, repeats, insertions."""
    if not data:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
    i, j = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:i]
    if kind == 1:
        return data[:i] + data[j:]
    if kind == 2:
        return data[:j] + data[i:j] + data[j:]
    if kind == 3:
        return data[:i] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))) + data[i:]
    k = rng.randrange(len(data))
    if kind == 4:
        return data[:k] + bytes([data[k] ^ (1 << rng.randrange(8))]) + data[k + 1 :]
    return data[:k] + data[k : k + 1] * rng.choice((2, 100, 10_000)) + data[k:]
