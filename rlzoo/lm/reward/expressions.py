"""The value of an arithmetic expression, in exact fractions and without `eval`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction

_OPERATORS: dict[str, tuple[int, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "/": (2, operator.truediv),
}
"""Binding strength and function of each operator. All are left-associative."""
_LONGEST = 200
"""Characters of the longest expression that is read, so that every one is evaluated quickly."""


def tokens_of(expression: str) -> list[str] | None:
    """Numbers, operators and brackets of an expression; None if it has anything else, or is too long."""
    if len(expression) > _LONGEST:
        return None
    tokens = re.findall(r"[0-9]+|\S", expression)
    return tokens if all(re.fullmatch(r"[0-9]+|[-+*/()]", x) for x in tokens) else None


def value_of(expression: str) -> Fraction | None:
    """The value of whole numbers with +, -, *, / and brackets; None if it is no such expression or has no value.

    A number has no sign. Text after 200 characters is not read: a longer expression has no value.
    """
    tokens = tokens_of(expression)
    if tokens is None:
        return None
    values: list[Fraction] = []
    waiting: list[str] = []  # operators and opening brackets (Dijkstra's shunting yard)

    def apply() -> None:
        right, left = values.pop(), values.pop()
        values.append(_OPERATORS[waiting.pop()][1](left, right))

    after_operand = False
    try:
        for token in tokens:
            if after_operand == (token.isdecimal() or token == "("):
                return None  # two operands, or two operators, in a row
            if token == "(":
                waiting.append(token)
            elif token == ")":
                while waiting[-1] != "(":
                    apply()
                waiting.pop()
            elif token in _OPERATORS:
                while waiting and waiting[-1] != "(" and _OPERATORS[waiting[-1]][0] >= _OPERATORS[token][0]:
                    apply()
                waiting.append(token)
                after_operand = False
            else:
                values.append(Fraction(int(token)))
                after_operand = True
        while waiting:
            apply()
    except (IndexError, KeyError, ZeroDivisionError):
        return None  # a bracket without its pair, or a division by zero
    return values[0] if after_operand else None
