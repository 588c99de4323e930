"""Fields that carry their range."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.fields import (
    Count,
    MinibatchSize,
    NonNegative,
    NonNegativeInt,
    OpenUnitInterval,
    Positive,
    Range,
    UnitInterval,
    check_fields,
)


@dataclass
class Settings:
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    unit: UnitInterval = 0.5
    open_unit: OpenUnitInterval = 0.5
    count: Count = 1
    minibatch: MinibatchSize = 64
    non_negative_int: NonNegativeInt = 0
    optional: Positive | None = None
    free: float = -1.0
    switch: bool = False
    name: str = ""
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = ()
    anything: Any = None


def check(**settings):
    check_fields(Settings(**settings))


def test_ends_of_a_range_belong_to_it_unless_left_out():
    assert 0 in Range(0, 1)
    assert 1 in Range(0, 1)
    assert 0 not in Range(0, 1, above=True)
    assert 1 not in Range(0, 1, below=True)
    assert -1e-9 not in Range(0)
    assert 1e300 in Range(0)


@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf, "1", None])
def test_only_finite_numbers_are_in_a_range(x):
    assert x not in Range()


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (Range(0), "at least 0"),
        (Range(0, above=True), "above 0"),
        (Range(0, 1), "in [0, 1]"),
        (Range(0, 1, above=True, below=True), "in (0, 1)"),
        (Range(0, 1, below=True), "in [0, 1)"),
    ],
)
def test_range_reads_as_text(bounds, text):
    assert str(bounds) == text


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positive": 1e-9, "non_negative": 0, "unit": 0, "count": 5},
        {"unit": 1, "optional": 2.0, "free": -1e9},
        {"minibatch": 1},
        {"minibatch": "all"},
        {"switch": True, "name": "x", "kind": "b", "sizes": (3, 4), "anything": object()},
    ],
)
def test_fields_of_their_type_and_range_pass(settings):
    check(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positive": 0.0}, "positive must be above 0, got 0.0"),
        ({"positive": math.nan}, "positive must be above 0, got nan"),
        ({"non_negative": -0.1}, "non_negative must be at least 0, got -0.1"),
        ({"unit": 1.5}, "unit must be in [0, 1], got 1.5"),
        ({"open_unit": 1.0}, "open_unit must be in (0, 1), got 1.0"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"non_negative_int": -1}, "non_negative_int must be at least 0, got -1"),
        ({"optional": 0.0}, "optional must be above 0, got 0.0"),
        ({"minibatch": 0}, "minibatch must be at least 1 or all, got 0"),
        ({"minibatch": "most"}, "minibatch must be an integer or all, got 'most'"),
        ({"minibatch": None}, "minibatch must be an integer or all, got None"),
        ({"count": 10**400}, "count must be below 3.40282e+38, got an integer of 1329 bits"),
        ({"positive": 10**400}, "positive must be below 3.40282e+38, got an integer of 1329 bits"),
        ({"optional": -(10**400)}, "optional must be below 3.40282e+38, got an integer of 1329 bits"),
    ],
)
def test_field_out_of_range_is_named_with_its_range(settings, message):
    with pytest.raises(ConfigError) as error:
        check(**settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positive": "1"}, "positive must be a number, got '1'"),
        ({"positive": None}, "positive must be a number, got None"),
        ({"positive": True}, "positive must be a number, got True"),
        ({"count": 2.0}, "count must be an integer, got 2.0"),
        ({"optional": "1"}, "optional must be a number, got '1'"),
        ({"switch": 1}, "switch must be True or False, got 1"),
        ({"name": 1}, "name must be a string, got 1"),
        ({"kind": "c"}, "kind must be a or b, got 'c'"),
        ({"sizes": (3, "4")}, "sizes must be a tuple, each an integer, got (3, '4')"),
        ({"sizes": 3}, "sizes must be a tuple, each an integer, got 3"),
    ],
)
def test_field_of_another_type_is_named_with_its_type(settings, message):
    with pytest.raises(ConfigError) as error:
        check(**settings)
    assert str(error.value) == message


def test_a_subclass_that_is_not_decorated_is_an_error():
    class Forgotten(Settings):
        beta: float = 0.5

    class WithoutFields(Settings):
        title: ClassVar[str] = "settings"

    with pytest.raises(ConfigError, match=r"^Forgotten has a field beta, but is not decorated: @data"):
        check_fields(Forgotten())
    check_fields(WithoutFields())
