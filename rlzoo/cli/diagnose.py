"""`rlzoo diagnose`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from rlzoo.cli.common import importing
from rlzoo.cli.options import Positional, Switch, parse
from rlzoo.core.system.screen import show

_ROOT = Path(__file__).parents[2]
"""Of a clone. A wheel has no pages."""


@dataclass(frozen=True, kw_only=True)
class _Diagnose:
    run: Positional[str]
    """Run directory. The run may be going on."""
    json: Switch = False
    """Print one JSON object."""


def diagnose_command(arguments: list[str]) -> None:
    description = "Read the metrics of a run and name what looks wrong, with the settings to change."
    options = parse(_Diagnose, arguments, "rlzoo diagnose", description)
    with importing():
        from rlzoo.runs.diagnose import PAGE, diagnose
        from rlzoo.runs.run import Run

    run = Run.open(options.run)
    findings = diagnose(run)
    last = run.last_metrics() or {}
    if options.json:
        records = [dataclasses.asdict(x) for x in findings]
        show(json.dumps({"run": str(run.path), "step": last.get("step"), "findings": records}))
        return
    show(f"{run.path}, up to step {last.get('step', 0):,}: {_count(len(findings))}")
    for x in findings:
        page = f"\n  page: {x.page}" if (_ROOT / PAGE).is_file() else ""
        show(f"\n{x.name}: {x.seen}\n  {x.reason}\n  turn: {x.turn}{page}")


def _count(findings: int) -> str:
    return {0: "nothing looks wrong", 1: "1 thing looks wrong"}.get(findings, f"{findings} things look wrong")
