"""`rlzoo export` and `push`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlzoo.cli.common import Saved, importing
from rlzoo.cli.options import Positional, Switch, parse
from rlzoo.core.system.screen import show


@dataclass(frozen=True, kw_only=True)
class _Export(Saved):
    format: Literal["onnx", "c"] = "onnx"
    """onnx, or c for a header without dependencies."""
    out: str | None = None
    """File to write; none for policy.onnx or policy.h."""


@dataclass(frozen=True, kw_only=True)
class _Push(Saved):
    repo: Positional[str]
    """user/name on the Hugging Face hub, or a new folder: ./name or /path/name."""
    private: Switch = False
    """Make a new repository private."""


def export_command(arguments: list[str]) -> None:
    description = "Write the deterministic policy to a file for other programs, with the normaliser inside."
    options = parse(_Export, arguments, "rlzoo export", description)
    with importing():
        from rlzoo.runs.publish.policies import export

    show(str(export(options.run, options.format, options.out, checkpoint=options.checkpoint)))


def push_command(arguments: list[str]) -> None:
    description = "Upload the policy to the Hugging Face hub with a model card, or write the same files to a folder."
    options = parse(_Push, arguments, "rlzoo push", description)
    with importing():
        from rlzoo.runs.publish.policies import push

    show(push(options.run, options.repo, private=options.private, checkpoint=options.checkpoint))
