"""Reading what earlier versions wrote: settings of format 2 (rlzoo 0.1 before schedules) as settings of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEDULED = {
    "anneal_lr": ("learning_rate", "vf_learning_rate"),
    "anneal_clip": ("clip_coef",),
    "anneal_kl": ("max_kl",),
}
"""Switches of format 2, and the settings that they lowered linearly to 0."""

_RENAMED = {
    "num_envs": "responses_per_batch",
    "part_tokens": "micro_batch_tokens",
    "missing_end_penalty": "missing_eos_penalty",
}
"""Settings of language tasks."""


def upgrade(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of format 2 in the names of today.

    The size of a minibatch of a language task was counted in steps and is counted in responses now: it becomes the
    nearest number of the longest responses.
    """
    new = dict(settings)
    both = new.get("algorithm") == "reinforce"
    for switch, names in SCHEDULED.items():
        if new.pop(switch, False):
            for name in names:
                if name in new and (both or not name.startswith("vf_")):
                    new[name] = f"linear:{float(new[name])!r}:0"
    if "max_new_tokens" not in new:
        return new
    for old, name in _RENAMED.items():
        if old in new:
            new[name] = new.pop(old)
    for old, name in (
        ("minibatch_size", "minibatch_responses"),
        ("vf_minibatch_size", "vf_minibatch_responses"),
    ):
        if old in new:
            new[name] = max(1, new.pop(old) // new["max_new_tokens"])
    return new
