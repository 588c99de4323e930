"""The value of an expression, against Python's own, and of hostile texts."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.lm.reward.expressions import value_of

EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", " - "]), part).map("".join), part.map("({})".format)
    ),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_equals_pythons_value(text):
    numbers = "".join(f"Fraction({x})" if x.isdigit() else x for x in _split(text))
    try:
        expected = eval(numbers, {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    assert value_of(text) == expected


def _split(text):
    word = ""
    for x in text:
        if x.isdigit():
            word += x
        else:
            yield from filter(None, (word, x))
            word = ""
    yield word


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "()", "(", ")", "((1)", "(1))", "1+", "+1", "-1", "1++2", "1 2", "1(2)", "(1)2", "(1)(2)", ")1(",
        "1/0", "1/(2-2)", "2**3", "2^3", "1,2", "1.5", "1e5", "x", "__import__('os')", "²", "٣", "１", "1=1", "\x00",
        "1_000",
    ],
)  # fmt: skip
def test_what_is_no_expression_has_no_value(text):
    assert value_of(text) is None


@pytest.mark.parametrize(
    "text", ["(" * 10**6, ")" * 10**6, "(" * 10**6 + "1" + ")" * 10**6, "9**9**9**9", "9*" * 10**6 + "9", "1" * 10**6]
)
def test_hostile_texts_take_no_time(text):
    start = time.process_time()
    assert value_of(text) is None
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "text", ["(" * 99 + "7" + ")" * 99, "7" + "*1" * 99, "0" * 199 + "7", "9" * 66 + "*" + "9" * 66]
)
def test_long_expressions_that_are_short_enough(text):
    assert value_of(text) == eval(text.lstrip("0"))
