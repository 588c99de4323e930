"""Faster implementations for language models, which give the same results up to rounding."""

from __future__ import annotations

from typing import Any


def accelerate(task: Any) -> None:
    """Puts the faster implementations in place in a language task: in its model, separate critic and reference.

    They use parts of PyTorch and transformers that may change. Where those are missing, plain ones stay.
    """
    try:
        from rlzoo.lm.fast import attention, kernels, model, packed

        attention.check_interfaces()
        kernels.check_interfaces()
        packed.check_interfaces()
    except (ImportError, AttributeError) as error:
        task.setup.progress.say(f"language models are slower with these versions of PyTorch and transformers: {error}")
        return
    model.accelerate_model(task.model)
    model.accelerate_reference(task.env.reference)
