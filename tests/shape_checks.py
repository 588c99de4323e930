"""The run-time checker of tensor shapes, for jaxtyping's import hook."""

import inspect

import jaxtyping
from beartype import beartype

_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker):
    """jaxtyping's decorator, which the hook puts before every class and function. One without shapes stays as it is."""
    decorate = _jaxtyped(typechecker=typechecker)
    return lambda x: decorate(x) if inspect.isclass(x) or "[Tensor, " in str(x.__annotations__) else x


def check(fn):
    """`fn`, holding its arguments and result to their shapes; annotations of any other kind are left alone."""
    fn.__annotations__ = {
        name: hint
        for name, hint in fn.__annotations__.items()
        if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    }
    return beartype(fn)
