"""Prompts with the columns of their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Prompt(str):
    """The text of a prompt, with the other columns of its record, such as the right answer."""

    columns: Mapping[str, Any]

    def __new__(cls, text: str, columns: Mapping[str, Any] | None = None) -> Prompt:
        prompt = super().__new__(cls, text)
        prompt.columns = dict(columns or {})
        return prompt


def columns_of(prompts: Sequence[str]) -> dict[str, list[Any]]:
    """Each column in the order of the prompts. Plain texts have none."""
    rows = [getattr(prompt, "columns", {}) for prompt in prompts]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}
