"""Learning curves: every algorithm on every classic-control problem, from the presets, over several seeds.

    python benchmarks/curves.py run --seeds 3 --jobs 2     train what is missing -> benchmarks/results/curves.jsonl
    python benchmarks/curves.py plot                       draw -> docs/assets/curves-<algorithm>.png, overview.png

One line of the results is one run: its settings, the steps and mean returns of its evaluations (with
sampled actions, on environments and seeds of their own, so that they change nothing), its final evaluations, and the
seconds that training took without them. A run whose settings are those of today's presets is not done again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlzoo.presets import find_preset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "curves.jsonl"
ASSETS = ROOT / "docs" / "assets"

FIRST_SEED = 10
"""Presets were chosen on lower seeds; results are shown for others."""
ALGORITHMS = ("reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip")
ENVIRONMENTS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
EVALUATIONS = 20
EPISODES = 20
FINAL_EPISODES = 100

Record = dict[str, Any]


# Running


def train(algorithm: str, env: str, seed: int, settings: dict[str, Any]) -> Record:
    """One run in memory, with a stochastic evaluation before it, and after every twentieth of it."""
    import torch

    from rlzoo import Trainer, make_config

    torch.set_num_threads(1)
    trainer = Trainer(make_config(algorithm, env, seed=seed, **settings))
    total = trainer.config.total_steps

    def mean_return(episodes: int, deterministic: bool = False, final: bool = False) -> float:
        evaluation_seed = np.random.SeedSequence(seed, spawn_key=(4, trainer.step, final)).generate_state(1)[0]
        evaluation = trainer.task.evaluate(episodes, seed=int(evaluation_seed), deterministic=deterministic)
        return round(evaluation.mean_return, 2)

    steps, returns, seconds = [0], [mean_return(EPISODES)], 0.0
    while not trainer.done:
        before, start = trainer.step, time.perf_counter()
        trainer.iterate()
        seconds += time.perf_counter() - start
        if trainer.step * EVALUATIONS // total > before * EVALUATIONS // total:
            steps.append(trainer.step)
            returns.append(mean_return(EPISODES))
    record = {
        "algorithm": algorithm,
        "env": env,
        "seed": seed,
        "settings": settings,
        "steps": steps,
        "mean_return": returns,
        "final_stochastic": mean_return(FINAL_EPISODES, final=True),
        "final_deterministic": mean_return(FINAL_EPISODES, final=True, deterministic=True),
        "seconds": round(seconds, 2),
    }
    trainer.task.close()
    return record


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(path: Path, records: Iterable[Record]) -> None:
    """All records in a fixed order, one a line."""

    def order(record: Record) -> tuple[int, int, int]:
        return ALGORITHMS.index(record["algorithm"]), ENVIRONMENTS.index(record["env"]), record["seed"]

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in sorted(records, key=order)))
    temporary.replace(path)


def run(options: argparse.Namespace) -> int:
    """Trains what is missing and keeps what is there; returns how many runs failed."""
    kept = {(r["algorithm"], r["env"], r["seed"]): r for r in read(options.out)}
    todo = []
    for seed in range(
        FIRST_SEED, FIRST_SEED + options.seeds
    ):  # seed by seed, so that a run cut short still has every pair
        for env in options.environments:
            for algorithm in options.algorithms:
                settings = dict(find_preset(algorithm, env) or {})
                if options.total_steps is not None:
                    settings["total_steps"] = options.total_steps
                key = algorithm, env, seed
                if key not in kept or kept[key]["settings"] != settings:
                    todo.append((*key, settings))
    print(f"{len(todo)} runs to do", flush=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # for the workers, before they import NumPy
    failed = 0
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures: dict[Future[Record], str] = {pool.submit(train, *job): f"{job[0]} {job[1]} {job[2]}" for job in todo}
        for number, future in enumerate(as_completed(futures), 1):
            label = f"{number:3}/{len(todo)}  {futures[future]:40}"
            if error := future.exception():
                failed += 1
                print(f"{label} failed: {type(error).__name__}: {error}", flush=True)
                continue
            record = future.result()
            kept[record["algorithm"], record["env"], record["seed"]] = record
            write(options.out, kept.values())
            print(f"{label} {record['final_stochastic']:8.1f} in {record['seconds']:6.1f} s", flush=True)
    return failed


# Drawing

# Okabe and Ito's palette: told apart by the colour-blind, and by their lightness in grey.
COLOURS = {
    "reinforce": "#595959",
    "npg": "#E69F00",
    "trpo": "#009E73",
    "ppo-penalty": "#56B4E9",
    "ppo-clip": "#D55E00",
}
NAMES = {
    "reinforce": "REINFORCE",
    "npg": "NPG",
    "trpo": "TRPO",
    "ppo-penalty": "PPO-penalty",
    "ppo-clip": "PPO-clip",
}
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.dpi": 200,
}


_ROUND = [1, 2, 5, 10]


def band(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, and the median, least and greatest mean return over the seeds, at 101 points of the run."""
    last = min(record["steps"][-1] for record in records)
    grid = np.linspace(0, last, 101)
    curves = np.array([np.interp(grid, record["steps"], record["mean_return"]) for record in records])
    return grid, np.median(curves, 0), curves.min(0), curves.max(0)


def threshold(env: str) -> float | None:
    """The return at which Gymnasium calls the environment solved; Pendulum-v1 has none."""
    import gymnasium

    bound = gymnasium.spec(env).reward_threshold
    return None if bound is None else float(bound)


def draw(axes: Axes, records: Sequence[Record], algorithm: str, shaded: float) -> None:
    """One algorithm's curve in a panel."""
    if not records:
        return
    grid, median, low, high = band(records)
    axes.fill_between(grid, low, high, color=COLOURS[algorithm], alpha=shaded, linewidth=0)
    axes.plot(grid, median, color=COLOURS[algorithm], linewidth=1.6, label=NAMES[algorithm])


def finish(axes: Axes, env: str, records: Sequence[Record]) -> None:
    """Title, threshold and limits of a panel; the limits are the same on every figure."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    bound = threshold(env)
    if bound is not None:
        axes.axhline(bound, color="#333333", linewidth=0.9, linestyle=(0, (4, 3)), label="solved, by Gymnasium")
    returns = [x for record in records for x in record["mean_return"]] + ([] if bound is None else [bound])
    if returns:
        low, high = min(returns), max(returns)
        margin = 0.05 * max(high - low, 1.0)
        axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(left=0)
    axes.set_title(env)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=_ROUND))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_ROUND))


def select(records: Iterable[Record], env: str, algorithm: str | None = None) -> list[Record]:
    return [r for r in records if r["env"] == env and algorithm in (None, r["algorithm"])]


def algorithm_figure(records: Sequence[Record], algorithm: str) -> Figure:
    """A row of panels, one an environment."""
    from matplotlib import pyplot as plt

    figure, row = plt.subplots(1, len(ENVIRONMENTS), figsize=(9.6, 2.1), layout="constrained")
    for axes, env in zip(row, ENVIRONMENTS, strict=True):
        draw(axes, select(records, env, algorithm), algorithm, shaded=0.25)
        finish(axes, env, select(records, env))
        axes.title.set_fontsize(8.5)
    row[0].set_ylabel("mean return")
    figure.supxlabel("environment steps", fontsize=8.5, color="#333333")
    return figure


def overview_figure(records: Sequence[Record]) -> Figure:
    """A panel an environment with all algorithms in it; the sixth place holds the legend."""
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(9, 4.8), layout="constrained")
    for axes, env in zip(grid.flat, ENVIRONMENTS, strict=False):
        for algorithm in ALGORITHMS:
            draw(axes, select(records, env, algorithm), algorithm, shaded=0.12)
        finish(axes, env, select(records, env))
    for axes in grid[:, 0]:
        axes.set_ylabel("mean return")
    for axes in (*grid[1, :2], grid[0, 2]):
        axes.set_xlabel("environment steps")
    seeds = len({record["seed"] for record in records})
    place = grid.flat[-1]
    place.axis("off")
    place.legend(
        *grid.flat[0].get_legend_handles_labels(),
        loc="center",
        fontsize=10,
        title=f"median and range of {seeds} seeds" if seeds > 1 else "one seed",
        title_fontsize=9,
        labelspacing=0.6,
    )
    return figure


def plot(options: argparse.Namespace) -> int:
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("Agg")
    plt.style.use(STYLE)
    records = read(options.results)
    if not records:
        print(f"no runs in {options.results}", file=sys.stderr)
        return 2
    options.assets.mkdir(parents=True, exist_ok=True)
    figures = {f"curves-{algorithm}": algorithm_figure(records, algorithm) for algorithm in ALGORITHMS}
    figures["overview"] = overview_figure(records)
    for name, figure in figures.items():
        path = options.assets / f"{name}.png"
        figure.savefig(path, metadata={"Software": None})
        print(path)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    running = commands.add_parser("run", help="train what is missing")
    running.set_defaults(command=run)
    running.add_argument("--seeds", type=int, default=3, metavar="N", help=f"seeds from {FIRST_SEED} on [3]")
    running.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time [1]")
    running.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS, metavar="NAME")
    running.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=ENVIRONMENTS, metavar="ID")
    running.add_argument("--total-steps", type=int, metavar="N", help="for a trial run; needs --out")
    running.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help=f"[{RESULTS.relative_to(ROOT)}]")

    plotting = commands.add_parser("plot", help="draw the figures")
    plotting.set_defaults(command=plot)
    plotting.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    plotting.add_argument("--assets", type=Path, default=ASSETS, metavar="DIR")

    options = parser.parse_args(arguments)
    if options.command is run and options.total_steps is not None and options.out == RESULTS:
        parser.error("--total-steps makes curves that are not the presets': give --out FILE as well")
    return int(bool(options.command(options)))


if __name__ == "__main__":
    sys.exit(main())
