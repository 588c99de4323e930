"""Which tokens may come next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rlzoo.core.env import Bools
from rlzoo.core.system.errors import EnvError, describe_error, place
from rlzoo.core.system.functions import as_function, brief
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.scores import score_name

Allowed = Callable[[list[int]], Iterable[int]]
"""A function of a row's tokens, prompt included, to the ids of the tokens that may come next, or to V booleans."""


class AllowedTokens:
    """The tokens that may come next.

    Args:
        function: called with the tokens of each row before each of its actions. It must depend on them alone.
        name: of the function, for messages.
        vocabulary: V, the number of tokens.
    """

    def __init__(self, function: Allowed, name: str, vocabulary: int) -> None:
        self.function, self.name, self.vocabulary = function, name, vocabulary

    @classmethod
    def of(cls, spec: Allowed | str, model: LanguageModel) -> AllowedTokens:
        """The `AllowedTokens` of a function, or of the function with the name `module:function`."""
        function = as_function("allowed_tokens", spec, "legal")
        return cls(function, score_name(spec), len(model.policy.functional.weight))

    def __call__(self, rows: Sequence[list[int] | None], step: int) -> Bools:
        """Which tokens may come next in each row (N, V); none in a row that is None.

        Raises `EnvError`, which names the row and the step, if the function fails or returns no token.
        """
        allowed = np.zeros((len(rows), self.vocabulary), np.bool_)
        for i, row in enumerate(rows):
            if row is not None:
                allowed[i, self._tokens(row, f"allowed_tokens {self.name}, row {i}, step {step}")] = True
        return allowed

    def with_allowed(self, tokens: Tokens) -> Tokens:
        """Complete rows (R, T), with the tokens allowed at each acting step."""
        token, attention, acts = (x.cpu() for x in (tokens.token, tokens.attention, tokens.acts))
        columns = []
        for t in range(token.shape[1]):
            seen = zip(token[:, : t + 1], attention[:, : t + 1], acts[:, t], strict=True)
            rows = [ids[keep].tolist() if act else None for ids, keep, act in seen]
            columns.append(torch.from_numpy(self(rows, t)))
        return dataclasses.replace(tokens, allowed=torch.stack(columns, 1).to(tokens.token.device))

    def _tokens(self, row: list[int], where: str) -> list[int]:
        try:
            result: Any = self.function(list(row))
            result = result.tolist() if hasattr(result, "tolist") else result
            tokens: list[Any] = [result] if isinstance(result, (str, bytes)) else list(result)
        except (Exception, SystemExit) as error:
            raise EnvError(f"{where}: {describe_error(error)}{place(error, self.function)}") from error
        if tokens and all(isinstance(x, (bool, np.bool_)) for x in tokens):
            if len(tokens) != self.vocabulary:
                raise EnvError(f"{where}: a mask of {len(tokens)} booleans; there are {self.vocabulary} tokens")
            tokens = np.flatnonzero(tokens).tolist()
        if not tokens:
            raise EnvError(f"{where}: no token is allowed after {row[-8:]}")
        whole = [isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in tokens]
        wrong = [x for x, is_id in zip(tokens, whole, strict=True) if not (is_id and 0 <= x < self.vocabulary)]
        if wrong:
            raise EnvError(f"{where}: {brief(wrong[0])} is no token; tokens are 0 to {self.vocabulary - 1}")
        if len(tokens) == self.vocabulary > 2 and max(tokens) <= 1:
            raise EnvError(f"{where}: a mask of 0 and 1 for {len(tokens)} tokens; return booleans, or the tokens")
        return tokens
