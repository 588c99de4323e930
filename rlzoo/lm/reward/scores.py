"""Score functions: what they are given, and what they must return."""

from __future__ import annotations

import inspect
import itertools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlzoo.core.system.errors import ConfigError, EnvError, describe_error, place, require
from rlzoo.core.system.functions import brief, load_function
from rlzoo.lm.reward.prompt import columns_of

if TYPE_CHECKING:
    from torch import Tensor


Score = Callable[..., Iterable[Any]]
"""A function `(prompts, responses) -> scores` of two lists of texts: one number for each response, higher is better.

It may take columns of the prompts' records as further arguments: `score(prompts, responses, answer)` gets the list of
the answers, and `score(prompts, responses, **columns)` every column. A function with an argument `completions` is
called by the names of its arguments, as TRL calls it: `score(completions, answer, **kwargs)`.
"""


class WeightedSum:
    """A score that is the weighted sum of several."""

    def __init__(self, parts: Mapping[str, tuple[Score, float]]) -> None:
        self.parts = parts

    def __call__(self, prompts: list[str], responses: list[str]) -> list[float]:
        return call_scores(self, "sum", prompts, responses)[0].tolist()


def load_score(spec: Any) -> Score:
    """The score that a user gave: a function of prompts, responses and columns, or its name (see `load_function`).

    Raises:
        ConfigError: there is no such function, or it cannot be called so.
    """
    score = load_function("reward", spec, "the directory of a reward model") if isinstance(spec, str) else spec
    forms = 'reward must be a function, "module:function" or the directory of a reward model, such as reward=brevity'
    require(callable(score), f"{forms}, got {brief(score)}")
    is_network = hasattr(score, "get_input_embeddings")
    require(not is_network, f"reward: a {type(score).__name__} takes tokens; give RewardModel(model, tokenizer)")
    try:
        texts, named = _texts(score, [], [])
        inspect.signature(score).bind(*texts, **named, **dict.fromkeys(_column_arguments(score)[1]))
    except (TypeError, ValueError) as error:  # the latter of built-in functions without a signature
        name = spec if isinstance(spec, str) else score_name(spec)
        raise ConfigError(f"reward {name!r} cannot be called with (prompts, responses): {error}") from error
    return score


def score_name(spec: Any) -> str:
    """The name of a score: of its function, class or directory."""
    if isinstance(spec, str):
        return re.split(r"[:/\\]", spec.rstrip("/"))[-1]
    return str(getattr(spec, "__name__", type(spec).__name__))


def call_scores(score: Score, name: str, prompts: list[str], responses: list[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """The result of `call_score`, and the scores of which it is the weighted sum, if there are several."""
    if not isinstance(score, WeightedSum):
        return call_score(score, name, prompts, responses), {}
    parts = {part: call_score(fn, part, prompts, responses) for part, (fn, _) in score.parts.items()}
    total: Any = sum(weight * parts[part].double() for part, (_, weight) in score.parts.items())
    return _score_tensor(total.tolist(), name, responses), parts


def call_score(score: Score, name: str, prompts: list[str], responses: list[str]) -> Tensor:
    """Scores of `responses`, (N,) float32. `score` may also return a tensor, array or generator of N numbers.

    It gets the columns of the prompts that it takes (see `columns_for`).

    Raises:
        EnvError: `score` raised, or did not return N finite numbers. The message starts with `name` and gives the line
            of code, or the response.
    """
    count = len(responses)
    try:
        texts, named = _texts(score, list(prompts), list(responses))
        result = score(*texts, **named, **columns_for(score, prompts))
        items = _items(result, count)
    except (Exception, SystemExit) as error:
        raise EnvError(f"reward {name}: {describe_error(error)}{place(error, score)}") from error

    if items is None or len(items) != count:
        more = items is not None and len(items) > count and not isinstance(result, Sized)
        returned = brief(result) if items is None else f"more than {count}" if more else len(items)
        raise EnvError(f"reward {name}: must return {count} numbers, one for each response, returned {returned}")
    return _score_tensor(items, name, responses)


def _score_tensor(items: list[Any], name: str, responses: Sequence[str]) -> Tensor:
    """The scores as a tensor. Raises `EnvError` if one is no finite number."""
    import torch

    scores = [as_number(item) for item in items]
    tensor = torch.tensor([math.nan if x is None else x for x in scores], dtype=torch.float32)
    for index in (~tensor.isfinite()).nonzero().flatten().tolist():
        x = scores[index]
        fault = f"{brief(items[index])}, not a number" if x is None else f"{x:g}, not a finite 32-bit number"
        raise EnvError(f"reward {name}: score of response {index} ({responses[index][:60]!r}) is {fault}")
    return tensor


def columns_for(score: Score, prompts: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of the prompts that a score takes, as keyword arguments."""
    taken, _ = _column_arguments(score)
    return {name: x for name, x in columns_of(prompts).items() if taken is None or name in taken}


def missing_columns(score: Score, prompts: Sequence[str]) -> list[str]:
    """The columns that a score needs and the prompts do not have."""
    columns = columns_of(prompts)
    return [column for part in _parts(score) for column in _column_arguments(part)[1] if column not in columns]


def clashing_columns(score: Score, prompts: Sequence[str]) -> list[str]:
    """The columns that a score takes and that have the name of its argument for prompts or responses."""
    return [x for part in _parts(score) for x in columns_for(part, prompts) if x in _text_arguments(part)]


def _parts(score: Score) -> list[Score]:
    return [fn for fn, _ in score.parts.values()] if isinstance(score, WeightedSum) else [score]


def _column_arguments(score: Score) -> tuple[list[str] | None, list[str]]:
    """Arguments of a score for columns (None if it takes any), and the ones of these without a default."""
    further = [x for name, x in inspect.signature(score).parameters.items() if name not in _text_arguments(score)]
    named = [x for x in further if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)]
    every = any(x.kind is x.VAR_KEYWORD for x in further)
    return None if every else [x.name for x in named], [x.name for x in named if x.default is x.empty]


def _text_arguments(score: Score) -> list[str]:
    """Names of a score's arguments for prompts and responses."""
    parameters = inspect.signature(score).parameters.values()
    positional = [x.name for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    return list(_texts(score, [], [])[1]) or positional[:2]


def _texts(score: Score, prompts: list[str], responses: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Prompts and responses as positional arguments, or by name if one of the score's arguments is `completions`."""
    parameters = inspect.signature(score).parameters
    if "completions" not in parameters:
        return [prompts, responses], {}
    every = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    return [], {"completions": responses} | ({"prompts": prompts} if every or "prompts" in parameters else {})


def _items(result: Any, count: int) -> list[Any] | None:
    """The items of a list, tensor, array or generator (at most one too many); None for other types."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if isinstance(result, str | bytes | Mapping | Set) or not isinstance(result, Iterable):
        return None
    return list(result if isinstance(result, Sized) else itertools.islice(result, count + 1))


def as_number(x: Any) -> float | None:
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
