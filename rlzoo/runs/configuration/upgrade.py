"""Settings of format 2, which versions before schedules wrote, translated to the settings of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEDULED = {
    "anneal_lr": ("learning_rate", "vf_learning_rate"),
    "anneal_clip": ("clip_coef",),
    "anneal_kl": ("max_kl",),
}
"""Flags of format 2, and the settings that they reduced linearly to 0."""

RENAMED = {
    "num_envs": "responses_per_batch",
    "part_tokens": "micro_batch_tokens",
    "missing_end_penalty": "missing_eos_penalty",
}
"""Old and new names of settings of language models."""

IN_RESPONSES = {"minibatch_size": "minibatch_responses", "vf_minibatch_size": "vf_minibatch_responses"}
"""Sizes that format 2 counted in tokens, and their names now that they count responses."""


def upgrade(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of format 2 as settings of today.

    The minibatch size of a language model was a number of tokens. It becomes the number of responses of the largest
    length that have as many tokens, and at least 1.
    """
    new = dict(settings)
    for flag, names in SCHEDULED.items():
        if new.pop(flag, False):
            for name in names:
                # Only REINFORCE annealed the value's learning rate too.
                if name in new and (name != "vf_learning_rate" or new.get("algorithm") == "reinforce"):
                    new[name] = f"linear:{float(new[name])!r}:0"
    longest = new.get("max_new_tokens")
    if longest is not None:
        renamed = {RENAMED.get(name, name): x for name, x in new.items()}
        new = {IN_RESPONSES.get(name, name): x for name, x in renamed.items()}
        new |= {name: max(1, new[name] // longest) for name in IN_RESPONSES.values() if name in new}
    return new
