"""Efficiency of several processes: the same run by one process, by one with K threads, and by K processes, in turns.

    python benchmarks/speed/several_processes.py [--processes 2] [--turns 3] [--out FILE] ALGORITHM ENV [OPTION ...]

Each of the K processes has one thread. The time of an iteration is the median over the iterations of all turns but the
first two of each run. The efficiency is the time of one process with one thread divided by K times that of K processes.
Evaluations are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_WARM = 2


def iterations(processes: int, threads: int, arguments: list[str]) -> list[float]:
    """Seconds of each iteration of a run."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, *(launcher if processes > 1 else []), "-m", "rlzoo", "train", *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([*command, "--quiet", "--out", str(out)], check=True, env=env)
        total = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [b - a for a, b in zip(total[_WARM - 1 :], total[_WARM:], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options, arguments = parser.parse_known_args()
    k = options.processes
    times: dict[tuple[int, int], list[float]] = {(1, 1): [], (1, k): [], (k, 1): []}
    for _ in range(options.turns):
        for (processes, threads), seconds in times.items():
            seconds += iterations(processes, threads, arguments)
    one, threaded, several = (statistics.median(seconds) for seconds in times.values())
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    record = {
        "arguments": arguments,
        "processes": k,
        "seconds_of_one": round(one, 4),
        "seconds_of_one_with_threads": round(threaded, 4),
        "seconds_of_several": round(several, 4),
        "efficiency": round(one / (k * several), 3),
        "load": load,
    }
    print(json.dumps(record, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
