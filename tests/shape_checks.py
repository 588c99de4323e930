"""The run-time checker of tensor shapes, for jaxtyping's import hook."""

import inspect

import jaxtyping
from beartype import beartype

_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker):
    """jaxtyping's decorator, which the hook puts before every class and function. One without shapes stays as it is."""
    decorate = _jaxtyped(typechecker=typechecker)
    return lambda x: decorate(x) if inspect.isclass(x) or _states_shapes(x) else x


def _states_shapes(fn):
    """Whether an annotation has a shape, or the name of one, such as `Vector`."""
    classes = ((name, x) for name, x in fn.__globals__.items() if inspect.isclass(x))
    named = (name for name, x in classes if issubclass(x, jaxtyping.AbstractArray))
    text = str(fn.__annotations__)
    return any(part in text for part in ("[Tensor, ", *named))


def check(fn):
    """`fn`, holding its arguments and result to their shapes; annotations of any other kind are left alone."""
    fn.__annotations__ = {
        name: hint
        for name, hint in fn.__annotations__.items()
        if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    }
    return beartype(fn)
