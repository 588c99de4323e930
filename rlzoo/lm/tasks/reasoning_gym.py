"""The tasks of the package reasoning-gym, as files of prompts and a verifier (`--reward` of the task `Prompts`)."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlzoo.core.errors import ConfigError, no_such
from rlzoo.lm.finetune.data import report_files, write_lines
from rlzoo.lm.reward.prompt import Prompt

SECONDS = 5.0
"""Time for the check of one response. Some verifiers evaluate it, and a power tower would never end."""


def prompts(dataset: str, size: int, seed: int, **options: Any) -> list[Prompt]:
    """Questions of a dataset such as "chain_sum".

    The column `source` says which entry it is, for `verify`; `answer` is an answer that is right, or None.

    Args:
        options: settings of the dataset, such as `max_terms=3`.

    Raises:
        ConfigError: there is no such dataset or option, or the package is missing.
    """
    source = {"dataset": dataset, "size": size, "seed": seed, "options": options}
    entries = _entries(json.dumps(source))
    return [
        Prompt(entries[i]["question"], {"answer": entries[i]["answer"], "source": {**source, "index": i}})
        for i in range(size)
    ]


def verify(prompts: list[str], responses: list[str], source: list[dict[str, Any]]) -> list[float]:
    """The score of the dataset for each response, in [0, 1]; 1 is right.

    Responses are checked in another process. One that makes the verifier fail, or takes it more than 5 seconds, gets 0.
    """
    return [_verifier().score(response, where) for response, where in zip(responses, source, strict=True)]


def write(folder: Path | str, dataset: str, size: int, held_out: int, seed: int, **options: Any) -> dict[str, int]:
    """Writes `prompts.jsonl` and `held_out_prompts.jsonl`, and returns the number of lines of each.

    No held-out question is among the others. Equal questions are left out.

    Raises:
        ConfigError: see `prompts`; one of the files exists, or the folder cannot be written.
    """
    kept = {str(x): x for x in prompts(dataset, held_out, seed + 1, **options)}
    train = {str(x): x for x in prompts(dataset, size, seed, **options) if x not in kept}
    files = {"prompts.jsonl": train, "held_out_prompts.jsonl": kept}
    lines = {name: [json.dumps({"prompt": x, **x.columns}) for x in found.values()] for name, found in files.items()}
    return write_lines(folder, lines)


@functools.cache
def _entries(source: str) -> Any:
    """The dataset of a source without `index`, as JSON. Its entries are made when they are asked for."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError("the tasks of reasoning-gym need the packages of rlzoo[reasoning-gym]") from error
    given = json.loads(source)
    name = given["dataset"]
    if name not in DATASETS:
        raise ConfigError(no_such("dataset of reasoning-gym", name, DATASETS))
    try:
        return reasoning_gym.create_dataset(name, size=given["size"], seed=given["seed"], **given["options"])
    except Exception as error:  # options are checked by assertions and by the constructor
        raise ConfigError(f"reasoning-gym's {name}: {' '.join(str(error).split())}") from None


class _Verifier:
    """Scores responses in a process of its own, which is replaced if it does not answer in time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def score(self, response: str, source: dict[str, Any]) -> float:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(json.dumps([response, source]).encode() + b"\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], SECONDS)[0]:
                return float(process.stdout.readline())
        self.close()
        return 0.0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", f"from {__spec__.name} import serve; serve()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise ConfigError("the verifier of reasoning-gym does not start: it needs rlzoo[reasoning-gym]")
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@functools.cache
def _verifier() -> _Verifier:
    return _Verifier()


def serve() -> None:
    """Reads a JSON line `[response, source]` at a time, and writes its score."""
    import reasoning_gym

    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # verifiers may print
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin.buffer:
        response, source = json.loads(line)
        index = source.pop("index")
        try:
            entry = _entries(json.dumps(source))[index]
            score = float(reasoning_gym.get_score_answer_fn(source["dataset"])(response, entry))
        except Exception:  # of a verifier that cannot read the response
            score = 0.0
        out.write(f"{score}\n".encode())
        out.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The command `python -m rlzoo.lm.tasks.reasoning_gym FOLDER DATASET [--option NAME=VALUE ...]`."""
    module = "rlzoo.lm.tasks.reasoning_gym"
    description = f"Writes prompts of a dataset of reasoning-gym. Train with --reward {module}:verify."
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("folder", type=Path, help="folder to write to; it is created if it does not exist")
    parser.add_argument("dataset", help="name of the dataset, such as chain_sum")
    parser.add_argument("--size", type=int, default=1000, help="prompts for training (default: 1000)")
    parser.add_argument("--held-out", type=int, default=200, help="prompts for evaluations (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the questions (default: 0)")
    parser.add_argument("--option", action="append", default=[], help="setting of the dataset, NAME=VALUE")
    given = parser.parse_args(argv)
    sizes = given.size, given.held_out, given.seed
    return report_files(
        given.folder, lambda: write(given.folder, given.dataset, *sizes, **dict(map(_option, given.option)))
    )


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--option must be NAME=VALUE, such as max_terms=3; got {text!r}")
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


if __name__ == "__main__":
    sys.exit(main())
