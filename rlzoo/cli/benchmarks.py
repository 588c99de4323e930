"""`rlzoo benchmark` and `rlzoo report`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlzoo.cli.common import importing
from rlzoo.cli.options import Positional, Switch, parse
from rlzoo.core.errors import require


@dataclass(frozen=True, kw_only=True)
class _Benchmark:
    suite: Positional[str]
    """A suite's name, or its file; smoke takes a minute."""
    out: str | None = None
    """The folder of results; results/<suite> if not given. What it holds already is not run again."""
    jobs: int | None = None
    """Processes at a time, each with one thread; as many as there are cores if not given."""
    backend: Literal["loky", "ray"] = "loky"
    """Processes on this machine, or the Ray cluster that RAY_ADDRESS names (pip install 'rlzoo[ray]')."""
    overwrite: Switch = False
    """Begin anew where the folder holds results already."""
    quiet: Switch = False
    """Print nothing but failures."""


@dataclass(frozen=True, kw_only=True)
class _Report:
    results: Positional[tuple[str, ...]]
    """Folders of results; of several, side by side."""
    out: str | None = None
    """Where to write report.html, report.md and figures; the folder itself, or ./comparison for several."""
    json: Switch = False
    """Print the names of the pages as one JSON object."""


def benchmark_command(arguments: list[str]) -> int:
    options = parse(_Benchmark, arguments, "rlzoo benchmark", "Run a suite of algorithms, environments and seeds.")
    with importing(threads=1):
        from rlzoo.benchmark.progress import Progress, make_progress
        from rlzoo.benchmark.runner import run_suite
        from rlzoo.benchmark.suite import load_suite

    suite = load_suite(options.suite)
    out = Path(options.out or Path("results", suite.name))
    results = run_suite(
        suite,
        out,
        jobs=options.jobs,
        backend=options.backend,
        overwrite=options.overwrite,
        progress=Progress() if options.quiet else make_progress(),
    )
    for failure in results.failures:
        print(f"rlzoo: {failure.label} {failure.env} seed {failure.seed} failed: {failure.error}", file=sys.stderr)
    if results.failures:
        count = f"{len(results.failures)} of {len(suite.jobs)} jobs"
        print(f"rlzoo: {count} failed; {out}/failures.jsonl has the tracebacks", file=sys.stderr)
    if not options.quiet:
        print(f"{len(results.outcomes)} of {len(suite.jobs)} jobs are done; see them: rlzoo report {out}")
    return 1 if results.failures else 0


def report_command(arguments: list[str]) -> int:
    options = parse(_Report, arguments, "rlzoo report", "Tables and figures of what suites came to, as a page.")
    require(len(options.results) > 0, "folders of results come first: rlzoo report DIR [DIR ...]")
    with importing(threads=1):
        from rlzoo.benchmark.report import write_report
        from rlzoo.benchmark.results import Results

    def warn(line: str) -> None:
        print(f"rlzoo: {line}", file=sys.stderr)

    results = [Results.read(folder, warn) for folder in options.results]
    out = Path(options.out or (options.results[0] if len(results) == 1 else "comparison"))
    pages = [str(page) for page in write_report(results, out)]
    print(json.dumps({"pages": pages}) if options.json else "\n".join(pages))
    return 0
