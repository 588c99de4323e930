"""RandomWalks by all five algorithms, with their presets: exact expected optimality, and the price of a KL.

    python benchmarks/random_walks.py run        # 5 algorithms x 3 seeds  -> results/random-walks.jsonl
    python benchmarks/random_walks.py frontier   # β from 0 to 0.5         -> results/random-walks-frontier.jsonl
    python benchmarks/random_walks.py report     # both -> results/random-walks.md and docs/assets/random-walks.png

Every run is the command `rlzoo train ALGORITHM RandomWalks --seed S [--beta β]` with one PyTorch thread, `--jobs` of
them side by side. Optimality and KL are those of the final evaluation; optimality is exact, the KL an average over
100 responses of its exact value at each token. What is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ALGORITHMS = ["reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"]
SEEDS = [10, 11, 12]
BETAS = [0.0, 0.02, 0.05, 0.1, 0.2, 0.5]
FRONTIER = ["trpo", "ppo-clip"]


def train(algorithm: str, seed: int, beta: float | None) -> dict[str, Any]:
    """The final evaluation of a run, and the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "rlzoo", "train", algorithm, "RandomWalks", "--seed", str(seed)]
        command += ["--out", str(out), "--threads", "1", "--quiet"]
        command += [] if beta is None else ["--beta", str(beta)]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    curve = [(line["step"], line["mean_return"]) for line in lines if not line["deterministic"]]
    final = next(line for line in lines if line["final"] and not line["deterministic"])
    return {
        "algorithm": algorithm,
        "seed": seed,
        "beta": beta,
        "optimality": final["mean_return"],
        "kl": final["kl_reference"],
        "steps": final["step"],
        "seconds": round(seconds, 1),
        "curve": curve,
    }


def run_all(path: Path, wanted: Iterable[tuple[str, int, float | None]], jobs: int) -> None:
    def key(record: dict[str, Any]) -> tuple[str, int, float | None]:
        return record["algorithm"], record["seed"], record["beta"]

    done = {key(record) for record in read(path)}
    with ThreadPoolExecutor(jobs) as pool, path.open("a") as file:
        for record in pool.map(lambda given: train(*given), [given for given in wanted if given not in done]):
            file.write(json.dumps(record) + "\n")
            file.flush()
            print({name: x for name, x in record.items() if name != "curve"}, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(records: list[dict[str, Any]]) -> list[str]:
    lines = ["| algorithm | optimality, median (lowest – highest) | KL, nats | tokens | seconds, longest |"]
    lines += ["|---|---|---|---|---|"]
    for algorithm in ALGORITHMS:
        mine = [r for r in records if r["algorithm"] == algorithm]
        if mine:
            optimality = sorted(r["optimality"] for r in mine)
            lines.append(
                f"| {algorithm} | **{statistics.median(optimality):.3f}** ({optimality[0]:.3f} – {optimality[-1]:.3f}) "
                f"| {statistics.median(r['kl'] for r in mine):.2f} | {mine[0]['steps']:,} "
                f"| {max(r['seconds'] for r in mine):.0f} |"
            )
    return lines


def report(runs: list[dict[str, Any]], frontier: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    colours = dict(zip(ALGORITHMS, plt.cm.tab10.colors, strict=False))
    for algorithm in ALGORITHMS:
        curves = [r["curve"] for r in runs if r["algorithm"] == algorithm]
        points = list(zip(*curves, strict=False))
        steps = [statistics.mean(step for step, _ in at) for at in points]
        values = [sorted(x for _, x in at) for at in points]
        left.plot(steps, [statistics.median(v) for v in values], color=colours[algorithm], label=algorithm)
        left.fill_between(steps, [v[0] for v in values], [v[-1] for v in values], color=colours[algorithm], alpha=0.15)
    left.set(xlabel="tokens of responses", ylabel="exact expected optimality", ylim=(0.3, 1.01), title="β = 0")
    left.legend(frameon=False)
    for algorithm in FRONTIER:
        mine = sorted((r for r in frontier if r["algorithm"] == algorithm), key=lambda r: r["beta"])
        right.plot(
            [r["kl"] for r in mine], [r["optimality"] for r in mine], "o-", color=colours[algorithm], label=algorithm
        )
        for r in mine:
            right.annotate(
                f"{r['beta']:g}", (r["kl"], r["optimality"]), (4, -11), textcoords="offset points", fontsize=8
            )
    right.set(xlabel="KL to the supervised start, nats a response", title="the price of a KL: β at each point")
    right.legend(frameon=False, loc="lower right")
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE.parent / "docs" / "assets" / "random-walks.png", dpi=130)
    lines = [
        "Seeds 10 to 12, one PyTorch thread a run, two runs side by side (`python benchmarks/random_walks.py run`):",
        "",
    ]
    lines += [*table(runs), "", "With a KL in the reward, seed 10 (`python benchmarks/random_walks.py frontier`):", ""]
    lines += [
        "| β | " + " | ".join(f"{a}: optimality | KL" for a in FRONTIER) + " |",
        "|---" * (1 + 2 * len(FRONTIER)) + "|",
    ]
    for beta in BETAS:
        at = {r["algorithm"]: r for r in frontier if r["beta"] == beta}
        lines.append(
            f"| {beta:g} | " + " | ".join(f"{at[a]['optimality']:.3f} | {at[a]['kl']:.2f}" for a in FRONTIER) + " |"
        )
    (RESULTS / "random-walks.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "frontier", "report"])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    runs, frontier = RESULTS / "random-walks.jsonl", RESULTS / "random-walks-frontier.jsonl"
    if options.what == "run":
        run_all(runs, ((algorithm, seed, None) for algorithm in ALGORITHMS for seed in SEEDS), options.jobs)
    elif options.what == "frontier":
        run_all(frontier, ((algorithm, SEEDS[0], beta) for algorithm in FRONTIER for beta in BETAS), options.jobs)
    else:
        report(read(runs), read(frontier))


if __name__ == "__main__":
    main()
