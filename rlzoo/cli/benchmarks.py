"""`rlzoo benchmark`, `report` and `search`."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rlzoo.cli.common import Json, importing
from rlzoo.cli.options import Positional, Seeds, Switch, parse
from rlzoo.core.system.errors import require
from rlzoo.core.system.screen import complain, show


@dataclass(frozen=True, kw_only=True)
class _Benchmark:
    suite: Positional[str]
    """Name or file of a suite. The suite smoke takes a minute."""
    out: str | None = None
    """Folder of the results; none for results/<suite>. Jobs whose results it already holds are not run again."""
    jobs: int | None = None
    """Number of processes, with one thread each; none for the number of cores."""
    backend: Literal["loky", "ray", "slurm", "dask"] = "loky"
    """Processes here, jobs of Slurm, or the cluster in RAY_ADDRESS or DASK_SCHEDULER_ADDRESS (extra: rlzoo[slurm])."""
    overwrite: Switch = False
    """Replace the results that the folder already holds."""
    quiet: Switch = False
    """Print only failures."""


@dataclass(frozen=True, kw_only=True)
class _Report(Json):
    paths: Positional[tuple[str, ...]]
    """Run directories, folders of a suite's results, and directories that hold any of these. Several are compared."""
    out: str | None = None
    """Folder for report.html, report.md, figures and numbers; none for the given path, or ./comparison for several."""


@dataclass(frozen=True, kw_only=True)
class _Search(Json):
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
    validation_seeds: Seeds = field(default_factory=lambda: Seeds((100, 101, 102, 103, 104)))
    """Other seeds, on which the best trial is compared with the settings where the search started."""
    fixed: Annotated[dict[str, Any], tyro.conf.arg(name="set")] = field(default_factory=dict)
    """Settings that are not searched, such as num_envs=8 model=models/sft."""
    variant: Annotated[dict[str, Any], tyro.conf.arg(name="try")] = field(default_factory=dict)
    """One more trial: the settings where the search started, with these changes."""
    jobs: int | None = None
    """Trials at a time, with one thread each; none for the number of cores."""
    quiet: Switch = False
    """Print only the result."""


def benchmark_command(arguments: list[str]) -> int:
    options = parse(_Benchmark, arguments, "rlzoo benchmark", "Run a suite of algorithms, environments and seeds.")
    with importing():
        from rlzoo.benchmark.runner import run_suite
        from rlzoo.benchmark.suite import load_suite
        from rlzoo.runs.logs.display import Display, make_display

    suite = load_suite(options.suite)
    out = Path(options.out or Path("results", suite.name))
    display = Display() if options.quiet else make_display()
    with display:
        results = run_suite(
            suite, out, jobs=options.jobs, backend=options.backend, overwrite=options.overwrite, progress=display
        )  # fmt: skip
    for failure in results.failures:
        complain(f"{failure.label} {failure.env} seed {failure.seed} failed: {failure.error}")
    if results.failures:
        count = f"{len(results.failures)} of {len(suite.jobs)} jobs"
        complain(f"{count} failed; {out}/failures.jsonl has the tracebacks")
    if not options.quiet:
        command = f"rlzoo report {shlex.quote(str(out))}"
        show(f"{len(results.outcomes)} of {len(suite.jobs)} jobs are done; show them with: {command}")
    return 1 if results.failures else 0


def report_command(arguments: list[str]) -> None:
    description = "Write tables and figures of runs and of the results of suites."
    options = parse(_Report, arguments, "rlzoo report", description)
    require(len(options.paths) > 0, "runs or folders of results are missing: rlzoo report PATH [PATH ...]")
    with importing():
        from rlzoo.benchmark.reports.from_runs import find_results
        from rlzoo.benchmark.reports.interactive import is_available
        from rlzoo.benchmark.reports.report import write_report

    results = find_results(options.paths, complain)
    out = Path(options.out or (options.paths[0] if len(options.paths) == 1 else "comparison"))
    pages = [str(page) for page in write_report(results, out)]
    if not is_available():
        complain("report.html has still figures; for interactive ones: pip install 'rlzoo[report]'")
    show(json.dumps({"pages": pages}) if options.json else "\n".join(pages))


def search_command(arguments: list[str]) -> None:
    description = "Search settings with Optuna, and write the best ones as a preset file for rlzoo train --preset."
    options = parse(_Search, arguments, "rlzoo search", description)
    with importing():
        from joblib import cpu_count

        from rlzoo.benchmark.search import search
        from rlzoo.runs.logs.display import LineDisplay

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
        say=(lambda line: None) if options.quiet or options.json else LineDisplay(sys.stdout).say,
    )
    if options.json:
        validation = {n: {"iqm": x.estimate, "interval": [x.low, x.high]} for n, x in result.validation.items()}
        summary = {"preset": str(result.preset), "trial": result.best, "score": result.score, "validation": validation}
        show(json.dumps(summary))
        return
    for line in result.lines:
        show(line)
    show(f"rlzoo train {options.algorithm} {options.env} --preset {shlex.quote(str(result.preset))}")
