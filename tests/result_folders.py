"""Result folders written by hand, and the tables that studies make of them."""

import dataclasses
import json
import re

from rlzoo.benchmark.job import Outcome
from rlzoo.benchmark.results import FORMAT
from rlzoo.benchmark.suite import Environment


def outcome(label, env, seed, last, final, start=0.0, **updates):
    return Outcome(
        label, env, seed, {}, [0, 100], [start, final], [start, final], final, final,
        updates={"last_100": last, "kl_median": 0.004, **updates}, seconds=[0.0, 1.0],
    )  # fmt: skip


def write(folder, outcomes, seeds, labels=None, envs=None):
    """A result folder with these runs; those of other labels, environments and seeds are missing."""
    labels = labels or list(dict.fromkeys(x.label for x in outcomes))
    envs = envs or list(dict.fromkeys(x.env for x in outcomes))
    suite = {
        "title": "T", "description": "", "eval_episodes": 1, "final_episodes": 1, "labels": labels, "counterparts": {},
        "environments": {env: dataclasses.asdict(Environment(env, 100, 100)) for env in envs}, "seeds": list(seeds),
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    lines = [dataclasses.asdict(x) for x in outcomes]
    (folder / "suite.json").write_text(json.dumps({"format": FORMAT, "suite": suite}))
    (folder / "timings.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (folder / "results.jsonl").write_text("".join(json.dumps({**x, "seconds": []}) + "\n" for x in lines))
    return folder


def rows(text, number):
    """The rows of a table, by their first cells."""
    lines = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[number].splitlines()[2:]
    return {cells[0]: cells[1:] for cells in (line.strip("| ").split(" | ") for line in lines)}
