"""`rlzoo search`."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlzoo.cli.common import importing
from rlzoo.cli.options import Positional, Seeds, Switch, parse
from rlzoo.core.system.screen import show


@dataclass(frozen=True, kw_only=True)
class _Search:
    algorithm: Positional[str]
    """Name or module:Class of an algorithm."""
    env: Positional[str]
    """An environment or task, as for train."""
    out: str | None = None
    """Folder of the study and of preset.toml; none for searches/<algorithm>-<env>. A study is continued."""
    trials: int = 30
    """Trials that the study has at the end."""
    total_steps: int | None = None
    """Steps of each run; none for those of the preset."""
    seeds: Seeds = field(default_factory=lambda: Seeds((0, 1, 2)))
    """Seeds of every trial."""
    validation_seeds: Seeds = field(default_factory=lambda: Seeds((10, 11, 12, 13, 14)))
    """Other seeds, on which the best trial is compared with the settings where the search started."""
    fixed: Annotated[dict[str, Any], tyro.conf.arg(name="set")] = field(default_factory=dict)
    """Settings that are not searched, such as num_envs=8 model=models/sft."""
    variant: Annotated[dict[str, Any], tyro.conf.arg(name="try")] = field(default_factory=dict)
    """One more trial: the settings where the search started, with these changes."""
    jobs: int | None = None
    """Trials at a time, with one thread each; none for the number of cores."""
    quiet: Switch = False
    """Print only the result."""
    json: Switch = False
    """Print the result as one JSON object."""


def search_command(arguments: list[str]) -> None:
    description = "Search settings with Optuna, and write the best ones as a preset file for rlzoo train --preset."
    options = parse(_Search, arguments, "rlzoo search", description)
    with importing():
        from joblib import cpu_count

        from rlzoo.benchmark.search import search

    fixed = options.fixed | ({} if options.total_steps is None else {"total_steps": options.total_steps})
    name = re.sub(r"[^\w.]+", "-", f"{options.algorithm}-{options.env}")
    result = search(
        options.algorithm,
        options.env,
        options.out or Path("searches", name),
        trials=options.trials,
        seeds=options.seeds,
        validation_seeds=options.validation_seeds,
        fixed=fixed,
        variant=options.variant,
        jobs=cpu_count() if options.jobs is None else options.jobs,
        command=shlex.join(["rlzoo", "search", *arguments]),
        say=(lambda line: None) if options.quiet or options.json else show,
    )
    if options.json:
        validation = {n: {"iqm": x.estimate, "interval": [x.low, x.high]} for n, x in result.validation.items()}
        summary = {"preset": str(result.preset), "trial": result.best, "score": result.score, "validation": validation}
        show(json.dumps(summary))
        return
    for line in result.lines:
        show(line)
    show(f"rlzoo train {options.algorithm} {options.env} --preset {result.preset}")
