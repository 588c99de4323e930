"""The run-time checker of tensor shapes, for jaxtyping's import hook."""

import functools
import inspect
import types

import jaxtyping
from beartype import beartype
from torch import Tensor

_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker):
    """jaxtyping's decorator, which the hook puts before every class and function. One without shapes stays as it is."""
    decorate = _jaxtyped(typechecker=typechecker)

    def decorated(x):
        if inspect.isclass(x):
            return decorate(x)
        return _checked_once(x, decorate) if _states_shapes(x) else x

    return decorated


def _checked_once(fn, decorate):
    """`fn`, checked once for each combination of types and shapes: a check takes longer than many a call."""
    passed, results = {}, []

    def run(*args, **kwargs):
        return results.pop() if results else fn(*args, **kwargs)

    # Names in annotations are looked up in the module of the function.
    run = types.FunctionType(run.__code__, fn.__globals__, closure=run.__closure__)
    checked = decorate(functools.update_wrapper(run, fn))

    @functools.wraps(fn)
    def call(*args, **kwargs):
        kinds = *map(_kind, args), *kwargs, *map(_kind, kwargs.values())
        if kinds not in passed:
            result = checked(*args, **kwargs)
        else:
            result = fn(*args, **kwargs)
            if _kind(result) not in passed[kinds]:
                results.append(result)
                checked(*args, **kwargs)
        passed.setdefault(kinds, set()).add(_kind(result))
        return result

    return call


def _kind(x):
    """All of a value that a check sees: shapes are stated of tensors alone, not of what is in a tuple."""
    return (type(x), x.dtype, x.shape) if isinstance(x, Tensor) else type(x)


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
