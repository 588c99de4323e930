"""Score functions: loading them by name, calling them, and errors that point at the user's code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import math
import numbers
import pkgutil
import re
import reprlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from rlzoo.core.errors import ConfigError, EnvError, no_such, require
from rlzoo.lm.reward.prompt import columns_of

if TYPE_CHECKING:
    from torch import Tensor


class Score(Protocol):
    """A function that returns one number for each response; higher is better. The lists have equal lengths.

    It may take columns of the prompts' records as further arguments: `score(prompts, responses, answer)` gets the list
    of the answers, and `score(prompts, responses, **columns)` every column.
    """

    def __call__(self, prompts: list[str], responses: list[str], /, **columns: list[Any]) -> list[float]: ...


def load_score(spec: str) -> Score:
    """The function named `module:function` or `path/file.py:function`.

    A module may be in the current directory. A file may import the modules in its own directory.

    Raises:
        ConfigError: there is no such module, file or function (the nearest name is suggested), it cannot be imported,
            or it cannot be called with prompts, responses and columns.
    """
    source, _, name = spec.rpartition(":")
    require(
        bool(source and name),
        f"reward {spec!r} is neither the directory of a reward model nor module:function nor file.py:function",
    )
    module = _import_file(spec, Path(source)) if source.endswith(".py") else _import_module(spec, source)
    if not hasattr(module, name):
        functions = [key for key, x in vars(module).items() if callable(x)]
        raise ConfigError(f"reward {spec!r}: {no_such('function', name, functions)}")
    score = getattr(module, name)
    require(callable(score), f"reward {spec!r}: {name} is not a function but of type {type(score).__name__}")
    _check_signature(spec, score)
    return score


class WeightedSum:
    """A score that is the weighted sum of several."""

    def __init__(self, parts: Mapping[str, tuple[Score, float]]) -> None:
        self.parts = parts

    def __call__(self, prompts: list[str], responses: list[str], /, **_: list[Any]) -> list[float]:
        return call_score(self, "sum", prompts, responses).tolist()


def check_score(spec: object, score: Any) -> Score:
    """`score`, if it is a function of prompts and responses.

    Raises:
        ConfigError: it is not.
    """
    require(
        callable(score),
        f'reward must be a function, "module:function" or the directory of a reward model, such as reward=brevity, '
        f"got {_brief(score)}",
    )
    _check_signature(str(spec), score)
    return score


def score_name(spec: Any) -> str:
    """The name of a score: of its function, class or directory."""
    if isinstance(spec, str):
        return re.split(r"[:/\\]", spec.rstrip("/"))[-1]
    return str(getattr(spec, "__name__", type(spec).__name__))


def call_scores(score: Score, name: str, prompts: list[str], responses: list[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """`call_score`, and the scores that it is the weighted sum of, if there are several."""
    if not isinstance(score, WeightedSum):
        return call_score(score, name, prompts, responses), {}
    parts = {part: call_score(fn, part, prompts, responses) for part, (fn, _) in score.parts.items()}
    total = sum(weight * parts[part].double() for part, (_, weight) in score.parts.items())
    return total.float(), parts  # type: ignore[union-attr]


def call_score(score: Score, name: str, prompts: list[str], responses: list[str]) -> Tensor:
    """Scores of `responses`, (N,) float32. `score` may also return a tensor, array or generator of N numbers.

    It is given the columns of the prompts that it takes (see `columns_for`).

    Raises:
        EnvError: `score` raised, or did not return N finite numbers. The message starts with `name` and gives the line
            of code, or the response.
    """
    import torch

    if isinstance(score, WeightedSum):
        return call_scores(score, name, prompts, responses)[0]
    count = len(responses)
    try:
        result = score(list(prompts), list(responses), **columns_for(score, prompts))
        items = _items(result, count)
    except (Exception, SystemExit) as error:
        raise EnvError(f"reward {name}: {_one_line(error)}{_place(error, score)}") from error

    def fail(fault: str, index: int | None = None) -> EnvError:
        at = "" if index is None else f"score of response {index} ({responses[index][:60]!r}) "
        return EnvError(f"reward {name}: {at}{fault}")

    if items is None:
        raise fail(f"must return {count} numbers, one for each response, returned {_brief(result)}")
    if len(items) != count:
        given = len(items) if len(items) < count or isinstance(result, Sized) else f"more than {count}"
        raise fail(f"must return {count} numbers, one for each response, returned {given}")
    scores = [_number(item) for item in items]
    if None in scores:
        index = scores.index(None)
        raise fail(f"is {_brief(items[index])}, not a number", index)
    tensor = torch.tensor(scores, dtype=torch.float32)
    finite = tensor.isfinite()
    if not finite.all():
        index = int(finite.int().argmin())
        raise fail(f"is {scores[index]:g}, not a finite 32-bit number", index)
    return tensor


def columns_for(score: Score, prompts: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of the prompts that a score takes, as keyword arguments."""
    taken, _ = _column_arguments(score)
    return {name: x for name, x in columns_of(prompts).items() if taken is None or name in taken}


def missing_columns(score: Score, prompts: Sequence[str]) -> list[str]:
    """The columns that a score needs and the prompts do not have."""
    known = columns_of(prompts)
    parts = [fn for fn, _ in score.parts.values()] if isinstance(score, WeightedSum) else [score]
    return [column for part in parts for column in _column_arguments(part)[1] if column not in known]


def _import_module(spec: str, name: str) -> ModuleType:
    with _importable(Path.cwd()):
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is not None and f"{name}.".startswith(f"{missing}."):
                fault = no_such("module", missing, _modules_beside(missing))
            else:
                fault = f"importing {name} raised {_one_line(error)}{_place(error)}"
            raise ConfigError(f"reward {spec!r}: {fault}") from error


def _import_file(spec: str, path: Path) -> ModuleType:
    if not path.is_file():
        known = [str(other) for other in path.parent.glob("*.py")]
        raise ConfigError(f"reward {spec!r}: {no_such('file', str(path), known)}")
    path = path.resolve()
    # A prefix, because its own name could be that of another module.
    name = f"_reward_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    with _importable(path.parent):
        try:
            found.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ConfigError(f"reward {spec!r}: {_one_line(error)}{_place(error)}") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Context in which modules in `folder` can be imported, before all others."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))


def _modules_beside(name: str) -> list[str]:
    """Full names of the modules in the package of `name`; without a package, of all top-level modules."""
    package = name.rpartition(".")[0]
    if not package:
        return [module.name for module in pkgutil.iter_modules()]
    path = getattr(sys.modules.get(package), "__path__", [])
    return [module.name for module in pkgutil.iter_modules(path, f"{package}.")]


def _check_signature(spec: str, score: Score) -> None:
    try:
        signature = inspect.signature(score)
    except (TypeError, ValueError):
        return  # some built-in functions have none
    try:
        signature.bind([], [], **dict.fromkeys(_column_arguments(score)[1]))
    except TypeError as error:
        raise ConfigError(f"reward {spec!r} cannot be called with (prompts, responses): {error}") from error


def _column_arguments(score: Score) -> tuple[list[str] | None, list[str]]:
    """Arguments of a score for columns, None for any; and those of them without a default."""
    try:
        further = list(inspect.signature(score).parameters.values())[2:]
    except (TypeError, ValueError):
        return [], []  # some built-in functions have no signature
    named = [x for x in further if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)]
    every = any(x.kind is x.VAR_KEYWORD for x in further)
    return None if every else [x.name for x in named], [x.name for x in named if x.default is x.empty]


def _items(result: Any, count: int) -> list[Any] | None:
    """The items of a list, tensor, array or generator (at most one too many); None for other types."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if isinstance(result, str | bytes | Mapping | Set) or not isinstance(result, Iterable):
        return None
    return list(result if isinstance(result, Sized) else itertools.islice(result, count + 1))


def _number(x: Any) -> float | None:
    """`x` as a float if it is a number, or an array or tensor of one number; otherwise None."""
    if hasattr(x, "item"):
        with suppress(RuntimeError, ValueError):
            x = x.item()
    if not isinstance(x, numbers.Real):
        return None
    try:
        return float(x)
    except OverflowError:
        return math.inf


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _place(error: BaseException, score: Score | None = None) -> str:
    """' (file:line)' of the last line of user code in the traceback, or of the function; '' if unknown."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        return f" ({error.filename}:{error.lineno})"
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [(file, line) for file, line in places if file != __file__ and not file.startswith("<")]
    code = getattr(score, "__code__", None)
    if code is not None:
        places.insert(0, (code.co_filename, code.co_firstlineno))
    own = [(file, line) for file, line in places if not file.startswith(_LIBRARIES)]
    return " ({}:{})".format(*(own or places)[-1]) if places else ""


def _one_line(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(message.split())}"


def _brief(x: Any) -> str:
    return " ".join(reprlib.repr(x).split())
