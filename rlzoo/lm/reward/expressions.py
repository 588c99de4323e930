"""The value of an arithmetic expression, in exact fractions and without `eval`."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_LONGEST = 200
"""Characters of the longest expression that is read, so that every one is evaluated quickly."""


def value_of(expression: str) -> Fraction | None:
    """The value of whole numbers with +, -, *, / and brackets; None if the text is no such expression or has no value.

    A number has no sign. An expression of more than 200 characters has no value.
    """
    if len(expression) > _LONGEST or re.search(r"[^-+*/()0-9\s]", expression):
        return None
    tokens = re.findall(r"[0-9]+|\S", expression)
    python = " ".join(str(int(x)) if x.isdecimal() else x for x in tokens)  # no 08, no ** and no //
    try:
        return _value(ast.parse(python, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Fraction(_OPERATORS[type(op)](_value(left), _value(right)))
    raise ValueError("no arithmetic expression of whole numbers")
