"""Schedules: their values, what they refuse, and fields that hold one."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.algorithms import Reinforce
from rlzoo.algorithms.algorithm import State
from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.fields import NonNegativeSchedule, PositiveSchedule, check_fields
from rlzoo.core.system.schedules import at, linear_ends

PROGRESS = st.floats(0, 1, exclude_max=True)


def half_cosine(progress):
    return 0.5 + 0.5 * math.cos(math.pi * progress)


def negative_in_the_middle(progress):
    return -1.0 if 0.4 < progress < 0.6 else 1.0


NOT_A_FUNCTION = 3.0


@given(PROGRESS)
def test_number_stays_as_it_is(progress):
    assert at(0.25, progress) == 0.25


@pytest.mark.parametrize(("progress", "value"), [(0, 0.4), (0.25, 0.325), (0.5, 0.25), (1, 0.1)])
def test_linear_schedule_by_hand(progress, value):
    assert at("linear:0.4:0.1", progress) == pytest.approx(value, rel=1e-15)


@given(st.floats(1e-6, 1e3), PROGRESS)
def test_linear_schedule_to_zero_is_the_start_times_what_is_left_to_the_bit(start, progress):
    assert at(f"linear:{start!r}:0", progress) == start * (1 - progress)


def test_function_and_its_name_give_its_values():
    assert at(half_cosine, 0.5) == half_cosine(0.5)
    assert at(f"{__name__}:half_cosine", 0.5) == half_cosine(0.5)
    assert isinstance(at(lambda progress: 1, 0.5), float)


@pytest.mark.parametrize(
    "text",
    ["linear", "linear:", "linear:1", "linear:1:2:3", "linear:a:0", "linear:inf:0", "linear:1:nan", "cosine:1:0"],
)
def test_text_of_another_form_is_no_linear_schedule(text):
    with pytest.raises(ConfigError) as error:
        linear_ends(text)
    assert str(error.value) == f"{text!r} is not of the form linear:START:END, such as linear:3e-4:0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.1", "'0.1' is neither linear:START:END nor module:function"),
        (":f", "':f' is neither"),
        ("math:", "'math:' is neither"),
        ("math:pi", "schedule 'math:pi': pi is not a function but of type float"),
        (f"{__name__}:NOT_A_FUNCTION", "NOT_A_FUNCTION is not a function but of type float"),
        ("no_such_module:f", "schedule 'no_such_module:f': no module 'no_such_module'"),
        ("math:cose", "schedule 'math:cose': no function 'cose'; did you mean 'cos'?"),
    ],
)
def test_name_that_leads_to_no_function_is_an_error(text, message):
    with pytest.raises(ConfigError, match=message):
        at(text, 0.5)


def test_error_of_a_module_that_is_asked_for_a_name_is_an_error_of_the_setting(tmp_path, monkeypatch):
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    raise RuntimeError('a package is missing')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"schedule 'lazy\.py:f': a package is missing"):
        at("lazy.py:f", 0.5)


@dataclass
class Settings:
    rate: PositiveSchedule = 0.1
    bonus: NonNegativeSchedule = 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 1, "bonus": 0},
        {"rate": "linear:3e-4:0"},
        {"rate": "linear:1e-3:1", "bonus": "linear:0:0.1"},
        {"rate": half_cosine, "bonus": f"{__name__}:half_cosine"},
        {"rate": lambda progress: progress},
        {"rate": lambda progress: np.array(progress), "bonus": lambda progress: torch.tensor(progress)},
    ],
)
def test_fields_hold_schedules_in_their_range(settings):
    check_fields(Settings(**settings))


FORM = "or a schedule such as linear:1e-3:0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0}, f"rate must be above 0, {FORM}, got 0.0"),
        ({"rate": True}, f"rate must be above 0, {FORM}, got True"),
        ({"rate": None}, f"rate must be above 0, {FORM}, got None"),
        ({"rate": math.nan}, f"rate must be above 0, {FORM}, got nan"),
        ({"rate": "0.1"}, f"rate must be above 0, {FORM}, got '0.1'"),
        ({"rate": "linear:1"}, f"rate must be above 0, {FORM}, got 'linear:1'"),
        ({"rate": "linear:0:1"}, "rate must be above 0 throughout, got 'linear:0:1'"),
        ({"rate": "linear:1:-1"}, "rate must be above 0 throughout, got 'linear:1:-1'"),
        ({"bonus": -1}, f"bonus must be at least 0, {FORM}, got -1"),
        ({"bonus": "linear:-1:1"}, "bonus must be at least 0 throughout, got 'linear:-1:1'"),
    ],
)
def test_schedule_out_of_range_is_named_with_its_range(settings, message):
    with pytest.raises(ConfigError) as error:
        check_fields(Settings(**settings))
    assert str(error.value) == message


@pytest.mark.parametrize("function", [negative_in_the_middle, lambda progress: math.nan, lambda progress: None])
def test_function_with_values_out_of_range_is_named(function):
    with pytest.raises(ConfigError, match=r"^rate must be above 0 throughout, got <function"):
        check_fields(Settings(rate=function))


def test_a_schedule_is_in_its_range_until_the_end_and_a_number():
    with pytest.raises(ConfigError, match=r"^learning_rate must be .* throughout"):
        Reinforce(learning_rate=lambda progress: 1e-3 * (1 - progress / 0.99))
    state = State(np.random.default_rng(0), progress=0.9999)
    with pytest.raises(ConfigError, match=r"^the schedule .* is nan at the progress 0.9999$"):
        state.at(lambda progress: math.nan if progress > 0.9995 else 1e-3)
