"""What the defaults of language models do on models and scores for which they were not chosen.

    python benchmarks/studies/language_defaults.py

Each algorithm trains the SFT checkpoint of three tasks from the preset of its kind (`kinds.toml`) instead of the task's
own, with two seeds. The table has the mean score of sampled responses before and after, and the KL of a response to the
initial model, in nats. "Annealed" is a learning rate that falls from that of the defaults to 0. Runs that are in
`benchmarks/results/language-defaults.jsonl` are not run again.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import tyro

import rlzoo
from rlzoo.runs.configuration.presets import preset_of_kind
from rlzoo.runs.files import append_jsonl, read_jsonl
from rlzoo.runs.registry import ALGORITHMS, task_class

TASKS, SEEDS, EPISODES = ("RandomWalks", "Reviews", "Arithmetic"), (10, 11), 200
ANNEALED = ("reinforce", "ppo-penalty", "ppo-clip")
"""Algorithms whose policy has a learning rate."""
KEY = ("algorithm", "task", "seed", "annealed")
RESULTS = Path(__file__).parents[1] / "results" / "language-defaults.jsonl"


def run(algorithm: str, task: str, seed: int, annealed: bool) -> dict[str, float]:
    """Score before and after, and KL after."""
    kind = task_class(task).Settings.kind(task, {})
    settings = dict(preset_of_kind(algorithm, kind) or {}, seed=seed)
    settings |= {"eval_episodes": EPISODES, "final_eval_episodes": EPISODES}
    settings["eval_interval"] = settings["total_steps"]
    if annealed:
        settings["learning_rate"] = f"linear:{settings['learning_rate']}:0"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        trained = rlzoo.train(algorithm, task, preset=False, out=folder, **settings)
        first, *_, last = (x for x in trained.evaluations() if not x["deterministic"])
    return {"before": first["mean_return"], "after": last["mean_return"], "kl": last["kl_reference"]}


def main() -> None:
    rows = {tuple(row[x] for x in KEY): row for _, row in read_jsonl(RESULTS)}
    for key in itertools.product(ALGORITHMS, TASKS, SEEDS, (False, True)):
        if key not in rows and (key[0] in ANNEALED or not key[3]):
            rows[key] = dict(zip(KEY, key, strict=True)) | run(*key)
            append_jsonl(RESULTS, [rows[key]])
    lines = [
        "| algorithm | task | score before | score after | KL, nats | annealed: score after | KL, nats |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for algorithm, task in itertools.product(ALGORITHMS, TASKS):
        cells = [
            " / ".join(f"{rows[algorithm, task, seed, annealed][name]:.2f}" for seed in SEEDS)
            if algorithm in ANNEALED or not annealed
            else "–"
            for annealed, names in ((False, ("before", "after", "kl")), (True, ("after", "kl")))
            for name in names
        ]
        lines.append(f"| {algorithm} | {task} | {' | '.join(cells)} |")
    title = "# The defaults of language models on SFT checkpoints\n\nTwo seeds, separated by a stroke.\n\n"
    RESULTS.with_suffix(".md").write_text(title + "\n".join(lines) + "\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
