"""Failures in pictures: runs with one wrong setting beside the same runs without it.

    python benchmarks/studies/failures.py               # all runs -> results/failures.jsonl, docs/assets/failures/
    python benchmarks/studies/failures.py too-few-cg    # those of one picture
    python benchmarks/studies/failures.py draw          # only the pictures, from the results

Each run is a call of `rlzoo.train` with one thread. Control runs have three seeds, and their return is the mean of the
last 100 episodes. Language runs have one seed, and their curves are those of the evaluations. The pictures are read in
docs/algorithms/*.md and docs/language-guide.md.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from matplotlib.axes import Axes

import rlzoo
from rlzoo.benchmark.reports import figures
from rlzoo.lm.tasks import reviews
from rlzoo.lm.tasks.random_walks import WalkGraph
from rlzoo.runs.files import read_jsonl

HERE = Path(__file__).parents[1]
PICTURES = HERE.parent / "docs" / "assets" / "failures"
DATA = HERE / "results" / "failures.jsonl"
STYLES: list[dict[str, Any]] = [{"color": "#009E73"}, {"color": "#D55E00", "linestyle": "dashed"}]

Curve = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Panel:
    """A metric over the steps of training."""

    metric: str
    title: str
    evaluated: bool = False
    """From the evaluations, not from the iterations."""
    log: bool = False


@dataclass(frozen=True)
class Failure:
    """Two configurations, healthy and broken, by their labels, and what shows the difference."""

    algorithm: str
    env: str
    settings: dict[str, dict[str, Any]]
    panels: tuple[Panel, ...]
    shared: dict[str, Any] = field(default_factory=lambda: {"total_steps": 50_000})
    seeds: tuple[int, ...] = (0, 1, 2)
    prepare: Callable[[], object] = lambda: None
    """Makes the files that the settings name, in the current directory."""


def walk_reward() -> None:
    """`reward`: a reward model of RandomWalks that has seen 100 comparisons."""
    start = rlzoo.train("ppo-clip", "RandomWalks", total_steps=1, out="first").path / "start"
    rlzoo.train_reward_model(WalkGraph.make().pairs(100, seed=0), start, "reward", learning_rate=1e-3)


def review_model() -> None:
    """`sft`: a language model of reviews."""
    reviews.write("data")
    shape = {"model_type": "gpt2", "n_layer": 2, "n_embd": 96, "n_head": 4, "n_positions": 96}
    Path("small.json").write_text(json.dumps(shape), encoding="utf-8")
    rlzoo.sft("data/texts.txt", "small.json", "sft", learning_rate=2e-3, epochs=2)


def brief(prompts: list[str], responses: list[str]) -> list[float]:
    """The score of Reviews minus a cost for each word."""
    return [
        x - 0.2 * len(text.split()) for x, text in zip(reviews.sentiment(prompts, responses), responses, strict=True)
    ]


RETURN = Panel("mean_return", "return")
OPTIMALITY = Panel("mean_return", "optimality (exact)", evaluated=True)
REFERENCE = Panel("kl_reference", "KL to the reference, nats", evaluated=True)
LENGTH = Panel("mean_length", "tokens of a response", evaluated=True)
FAILURES = {
    "reinforce-step": Failure(
        "reinforce", "CartPole-v1", {"preset": {}, "learning rate 0.1": {"learning_rate": 0.1}},
        (RETURN, Panel("entropy", "entropy, nats")),
    ),
    "npg-step": Failure(
        "npg", "CartPole-v1", {"preset": {}, "step_kl 0.5": {"step_kl": 0.5}},
        (RETURN, Panel("kl", "KL of an update, nats", log=True)),
    ),
    "too-few-cg": Failure(
        "trpo", "CartPole-v1", {"preset, cg_iters 10": {}, "cg_iters 1": {"cg_iters": 1}},
        (RETURN, Panel("cg_residual", "residual of F·x = g", log=True), Panel("step_norm", "step length", log=True)),
    ),
    "value-lags": Failure(
        "trpo", "Pendulum-v1", {"preset": {}, "vf_learning_rate 1e-6": {"vf_learning_rate": 1e-6}},
        (RETURN, Panel("explained_variance", "explained variance")), {"total_steps": 100_000}, (10, 11, 12),
    ),
    "kl-runaway": Failure(
        "ppo-clip", "Pendulum-v1", {"preset": {}, "learning rate 0.02": {"learning_rate": 0.02}},
        (RETURN, Panel("kl_k3", "KL of an update, nats", log=True), Panel("clip_fraction", "clip fraction")),
    ),
    "beta-at-bound": Failure(
        "ppo-penalty", "Pendulum-v1",
        {"preset": {}, "learning rate 0.02, kl_coef_max 1": {"learning_rate": 0.02, "kl_coef_max": 1.0}},
        (RETURN, Panel("kl", "KL of an update, nats", log=True), Panel("kl_coef", "β", log=True)),
    ),
    "reward-hacking": Failure(
        "ppo-clip", "RandomWalks", {"β = 0.3": {"beta": 0.3}, "β = 0": {"beta": 0.0}},
        (OPTIMALITY, Panel("score", "score of the reward model", True), REFERENCE),
        {"reward": "reward", "eval_interval": 1500}, (0,), walk_reward,
    ),
    "language-kl-runaway": Failure(
        "ppo-clip", "RandomWalks", {"preset": {}, "learning rate 0.01": {"learning_rate": 0.01}},
        (OPTIMALITY, REFERENCE, LENGTH),
        {"eval_interval": 1500}, (0,),
    ),
    "length-collapse": Failure(
        "ppo-clip", "Reviews", {"sentiment": {}, "sentiment − 0.2 for each word": {"reward": brief}},
        (Panel("sentiment", "sentiment", True), LENGTH, REFERENCE),
        {"model": "sft", "total_steps": 30_000, "eval_interval": 1500, "eval_episodes": 64, "learning_rate": 3e-4},
        (0,), review_model,
    ),
}  # fmt: skip


def main(names: tuple[str, ...] = (), /) -> None:
    torch.set_num_threads(1)
    PICTURES.mkdir(parents=True, exist_ok=True)
    chosen = () if names == ("draw",) else names or tuple(FAILURES)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            curves = measured(FAILURES[name])
        data = {**read(), name: curves}
        lines = [json.dumps({"picture": x, "curves": data[x]}, ensure_ascii=False) for x in FAILURES if x in data]
        DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")
        last = {label: {metric: [y[-1] for _, y in c] for metric, c in x.items()} for label, x in curves.items()}
        print(name, last, flush=True)
    data = read()
    for name in chosen or data:
        (PICTURES / f"{name}.svg").write_text(drawn(FAILURES[name], data[name]), encoding="utf-8")


def read() -> dict[str, dict[str, dict[str, list[Curve]]]]:
    """Curves by picture, label and metric."""
    return {x["picture"]: x["curves"] for _, x in read_jsonl(DATA)}


def measured(failure: Failure) -> dict[str, dict[str, list[Curve]]]:
    """Curves of the seeds, by label and metric."""
    failure.prepare()
    curves: dict[str, dict[str, list[Curve]]] = {}
    for label, settings in failure.settings.items():
        curves[label] = {panel.metric: [] for panel in failure.panels}
        for seed in failure.seeds:
            settings = {**failure.shared, **settings}
            run = rlzoo.train(failure.algorithm, failure.env, seed=seed, out=f"{seed} {label}", **settings)
            evaluations = [x for x in run.evaluations() if not x["deterministic"] and not x["final"]]
            for panel in failure.panels:
                lines = evaluations if panel.evaluated else run.metrics()
                points = [(x["step"], value(x, panel.metric)) for x in lines]
                points = [(step, float(f"{y:.4g}")) for step, y in points if y is not None]
                curves[label][panel.metric].append(([x for x, _ in points], [y for _, y in points]))
    return curves


def value(line: dict[str, Any], metric: str) -> float | None:
    """A metric of a line. `sentiment` is the score of Reviews itself, whatever the run was trained on."""
    return line.get("true_score", line["mean_return"]) if metric == "sentiment" else line[metric]


def drawn(failure: Failure, curves: dict[str, dict[str, list[Curve]]]) -> str:
    styles = dict(zip(failure.settings, STYLES, strict=True))

    def draw(axes: Axes, panel: Panel) -> None:
        for label, style in styles.items():
            for i, (x, y) in enumerate(curves[label][panel.metric]):
                axes.plot(x, y, linewidth=1.3, label=None if i else label, **style)
        axes.set(title=panel.title, xlabel="steps", yscale="log" if panel.log else "linear")
        axes.margins(x=0)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
        if panel.log:
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        if panel is failure.panels[0]:
            axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.22))

    return figures.grid([partial(draw, panel=panel) for panel in failure.panels])


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
