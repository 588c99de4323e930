"""Bias and noise of gradient estimators, on a language task where all responses are enumerated.

    python -m benchmarks.studies.estimators --out results/estimators    # a few minutes on one core

Run it in the root of the repository. It writes `estimates.json`, and `report.md` with its figures, into the folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.studies.estimators.report import write_report
from benchmarks.studies.estimators.study import measure
from rlzoo.runs.logs.display import make_display


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/estimators"))
    parser.add_argument("--batches", type=int, default=1000, help="batches for each estimator, at least 100")
    parser.add_argument("--seed", type=int, default=0, help="seed of the responses")
    options = parser.parse_args()
    if options.batches < 100:
        parser.error(f"batches must be at least 100, got {options.batches}")
    torch.set_num_threads(1)
    with make_display():
        record = measure(options.batches, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "estimates.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(write_report(record, options.out))


if __name__ == "__main__":
    main()
