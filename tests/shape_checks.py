"""The run-time checker of tensor shapes, for jaxtyping's import hook."""

import inspect

import jaxtyping
from beartype import beartype


def check(fn):
    """`fn`, holding its arguments and result to their shapes; annotations of any other kind are left alone."""
    fn.__annotations__ = {
        name: hint
        for name, hint in fn.__annotations__.items()
        if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    }
    return beartype(fn)
