"""The command: `python -m tests.faults.campaign FAMILY --runs N --seed S`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.faults.campaign.sandbox import Sandbox

FAMILIES = (
    *("suites", "commands", "names", "directories", "data", "environments", "scores", "push"),
    *("kill", "twins", "disks", "streams"),
)


def main() -> int:
    """Runs the attacks of a family. Prints what went wrong, and returns 1 if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--runs", type=int, default=100, help="number of attacks")
    parser.add_argument("--seed", type=int, default=0, help="the first attack has this seed, the next one the next")
    options = parser.parse_args()
    family = importlib.import_module(f"tests.faults.campaign.{options.family}")
    start, kinds, done = time.monotonic(), Counter[str](), 0
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(options.seed, options.seed + options.runs):
            with tempfile.TemporaryDirectory() as folder:
                for fault in family.one(Random(f"{options.family} {seed}"), Sandbox(Path(folder))):
                    kinds[fault.partition(": ")[0]] += 1
                    print(f"{options.family} --runs 1 --seed {seed}: {fault}", flush=True)
            done += 1
    faults, counts = sum(kinds.values()), getattr(family, "counts", None)
    seconds = time.monotonic() - start
    print(f"{options.family}: {done} attacks, {faults} faults, {seconds:.0f} s", file=sys.stderr)
    if counts:
        each = "; ".join(f"{name}: {counts[name]}" for name in sorted(counts))
        print(f"{sum(counts.values())} {family.COUNTED}: {each}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
