"""`rlzoo benchmark` and `rlzoo report`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlzoo.cli.common import importing
from rlzoo.cli.options import Positional, Switch, parse
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
class _Report:
    paths: Positional[tuple[str, ...]]
    """Run directories, folders of a suite's results, and directories that hold any of these. Several are compared."""
    out: str | None = None
    """Folder for report.html, report.md, figures and numbers; none for the given path, or ./comparison for several."""
    json: Switch = False
    """Print the paths of the pages as one JSON object."""


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
        show(f"{len(results.outcomes)} of {len(suite.jobs)} jobs are done; show them with: rlzoo report {out}")
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
