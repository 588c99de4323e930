"""Objects in a configuration as JSON."""

import functools
import json

import numpy as np
import pytest

from rlzoo.runs.configuration.objects import (
    as_json,
    describe_object,
    first_description,
    import_name,
    names_code,
    with_tuples,
)


def top_level():
    def inner():
        pass

    return inner


class TopLevel:
    def method(self):
        pass


def test_functions_and_classes_at_the_top_level_are_named():
    assert import_name(top_level) == f"{__name__}:top_level"
    assert as_json(TopLevel) == f"{__name__}:TopLevel"
    assert as_json([top_level, 3]) == [f"{__name__}:top_level", 3]
    assert as_json({top_level: 0.5, "models/reward": 2}) == [[f"{__name__}:top_level", 0.5], ["models/reward", 2]]


@pytest.mark.parametrize(
    ("x", "description"),
    [
        (lambda: 3, f"a lambda of {__name__}"),
        (top_level(), f"a function top_level.<locals>.inner of {__name__}"),
        (TopLevel(), f"an instance of TopLevel of {__name__}"),
        (TopLevel().method, f"a function TopLevel.method of {__name__}"),
        ([].append, "a function list.append"),
        (functools.partial(top_level), "an instance of partial of functools"),
        (np.zeros(2), "an instance of ndarray of numpy"),
    ],
)
def test_others_are_described(x, description):
    assert as_json(x) == {"object": description}
    assert as_json((1, x)) == [1, {"object": description}]
    assert first_description(as_json({"a": [x]})) is not None
    assert first_description(as_json({"a": 1, "b": [2, x]})) == description


def test_main_is_another_module_in_another_program(monkeypatch):
    monkeypatch.setattr(TopLevel, "__module__", "__main__")
    assert import_name(TopLevel) is None
    assert describe_object(TopLevel) == "a class TopLevel of __main__"


def test_function_in_a_dict_is_described_because_nothing_would_import_it():
    assert as_json({"f": top_level}) == {"f": {"object": f"a function top_level of {__name__}"}}


def test_plain_values_stay():
    plain = {"a": [1, 2.5, None, "x:y", True], "b": {"c": []}}
    assert as_json(plain) == plain
    assert first_description(plain) is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [("a.b:c", True), ("a:B(x=1)", True), (["a:b"], True), ("CartPole-v1", False), ("linear:1:0", False), (3, False)],
)
def test_names_of_code(record, expected):
    assert names_code(record) is expected


def test_tuples_in_keyword_arguments_come_back_as_tuples():
    kwargs = {"goal": (1, 2), "map": [[0, (1, "a")]], "nested": {"size": ()}}
    assert with_tuples(json.loads(json.dumps(as_json(kwargs)))) == kwargs
