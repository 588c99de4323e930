"""Expected optimality against KL to the reference: RandomWalks with its presets, for several β.

    python benchmarks/random_walks.py run      # β from 0 to 0.5 -> results/random-walks-frontier.jsonl
    python benchmarks/random_walks.py report   # -> results/random-walks.md and docs/assets/random-walks.png

Every run is the command `rlzoo train ALGORITHM RandomWalks --seed 10 --beta β` with one PyTorch thread, `--jobs` of
them in parallel. Optimality and KL are those of the final evaluation. Optimality is exact; the KL is exact at each
token and averaged over 100 responses. Finished runs are not repeated. `rlzoo benchmark lm` compares the five
algorithms over several seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNS = HERE / "results" / "random-walks-frontier.jsonl"
SEED = 10
BETAS = [0.0, 0.02, 0.05, 0.1, 0.2, 0.5]
ALGORITHMS = {"trpo": "#009E73", "ppo-clip": "#D55E00"}


def train(algorithm: str, beta: float) -> dict[str, Any]:
    """The final evaluation of a run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "rlzoo", "train", algorithm, "RandomWalks", "--seed", str(SEED)]
        command += ["--beta", str(beta), "--out", str(out), "--threads", "1", "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    final = next(line for line in lines if line["final"] and not line["deterministic"])
    return {"algorithm": algorithm, "beta": beta, "optimality": final["mean_return"], "kl": final["kl_reference"]}


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def run(jobs: int) -> None:
    done = {(record["algorithm"], record["beta"]) for record in read()}
    todo = [(algorithm, beta) for algorithm in ALGORITHMS for beta in BETAS if (algorithm, beta) not in done]
    with ThreadPoolExecutor(jobs) as pool, RUNS.open("a") as file:
        for record in pool.map(lambda given: train(*given), todo):
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(record, flush=True)


def report() -> None:
    from matplotlib.figure import Figure

    runs = read()
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for algorithm, colour in ALGORITHMS.items():
        mine = sorted((r for r in runs if r["algorithm"] == algorithm), key=lambda r: r["beta"])
        kl, optimality = [r["kl"] for r in mine], [r["optimality"] for r in mine]
        axes.plot(kl, optimality, "o-", color=colour, label=algorithm)
        for r in mine:
            place = (r["kl"], r["optimality"])
            axes.annotate(f"{r['beta']:g}", place, (4, -11), textcoords="offset points", fontsize=8)
    axes.set(xlabel="KL to the SFT checkpoint, nats per response", ylabel="exact expected optimality")
    axes.set_title("optimality and KL; β at each point")
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE.parent / "docs" / "assets" / "random-walks.png", dpi=130)
    lines = [
        "| β | " + " | ".join(f"{a}: optimality | KL" for a in ALGORITHMS) + " |",
        "|---" * (1 + 2 * len(ALGORITHMS)) + "|",
    ]
    for beta in BETAS:
        at = {r["algorithm"]: r for r in runs if r["beta"] == beta}
        cells = " | ".join(f"{at[a]['optimality']:.3f} | {at[a]['kl']:.2f}" for a in ALGORITHMS)
        lines.append(f"| {beta:g} | {cells} |")
    (HERE / "results" / "random-walks.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.what == "run":
        run(options.jobs)
    else:
        report()


if __name__ == "__main__":
    main()
