"""What each faster implementation gains: processor time of a training iteration without it, relative to with it.

    python benchmarks/speed/fast_parts.py               # control and language models, about ten minutes
    python benchmarks/speed/fast_parts.py control

Every row takes turns with the complete set in one process each, and the table shows the median ratio. A part that gains
less than 1.15 in every row does not stay in the package. Writes benchmarks/results/fast-parts.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "results" / "fast-parts.md"
ZOO = {"num_envs": 8, "num_steps": 32, "minibatch_size": 256, "epochs": 20}
GPT2 = {
    "responses_per_batch": 16,
    "max_new_tokens": 32,
    "minibatch_responses": 16,
    "epochs": 4,
}

ROWS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "control": [
        ("written-out backward pass of MLPs", "ppo-clip", "CartPole-v1", ZOO),
        ("written-out backward pass through time", "ppo-clip", "CartPoleNoVel-v1", {**ZOO, "network": "gru"}),
        ("written-out backward pass through time", "ppo-clip", "CartPoleNoVel-v1", {**ZOO, "network": "lstm"}),
        ("acting through NumPy", "ppo-clip", "CartPole-v1", ZOO),
        ("acting through NumPy", "trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512}),
        ("acting through NumPy", "ppo-clip", "CartPoleNoVel-v1", {**ZOO, "network": "gru"}),
        ("compiled step", "ppo-clip", "CartPole-v1", ZOO),
    ],
}
"""Part, algorithm, environment and settings."""


def leave_out(part: str) -> None:
    """Takes a part out of the set of faster implementations."""
    from rlzoo.control import fast as control
    from rlzoo.control.acting import make_actor
    from rlzoo.control.networks import MLP
    from rlzoo.control.recurrent import RecurrentMLP

    if part == "written-out backward pass of MLPs":
        del control.NETWORKS[MLP]
    elif part == "written-out backward pass through time":
        del control.NETWORKS[RecurrentMLP]
    elif part == "acting through NumPy":
        control.make_numpy_actor = make_actor


def seconds(part: str | None, algorithm: str, env: str, settings: dict[str, Any]) -> float:
    """Processor seconds of an iteration, the least of several."""
    import torch

    from rlzoo import Trainer, make_config

    torch.set_num_threads(1)
    compiled = part in ("compiled step", "with the compiled step")
    if part is not None and part != "compiled step":
        leave_out(part)
    trainer = Trainer(make_config(algorithm, env, total_steps=10**9, compile=compiled, **settings))
    best = float("inf")
    for _ in range(12):
        start = time.process_time()
        trainer.iterate()
        best = min(best, time.process_time() - start)
    return best


def in_a_process(*arguments: Any) -> float:
    command = [sys.executable, __file__, "--row", json.dumps(arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return float(output.splitlines()[-1])


def table(kinds: list[str], rounds: int) -> str:
    lines = ["| part | run | gain |", "| --- | --- | --- |"]
    for kind in kinds:
        for part, algorithm, env, settings in ROWS[kind]:
            ratios = []
            for _ in range(rounds):
                without, complete = (
                    in_a_process(part, algorithm, env, settings),
                    in_a_process(None, algorithm, env, settings),
                )
                ratios.append(complete / without if part == "compiled step" else without / complete)
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
            network = settings.get("network", "")
            lines.append(f"| {part} | {algorithm} {env} {network} | {spread} |".replace("  ", " "))
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(seconds(*json.loads(options.row)))
        return
    RESULT.write_text(table(options.kinds, options.rounds))


if __name__ == "__main__":
    main()
