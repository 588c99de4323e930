"""The table of settings."""

from dataclasses import dataclass, field

import pytest

from rlzoo.core.errors import ConfigError
from rlzoo.runs.settings import help_texts, settings_of, unknown_name


@dataclass(frozen=True)
class Inner:
    depth: int = 3
    """How
    deep."""


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    width: float = 0.5
    """How wide."""
    kind: type = Inner
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Other:
    depth: int = 4


def test_fields_of_parts_and_of_parts_in_them():
    table = settings_of(Outer())
    assert list(table) == ["depth", "width", "kind", "extra"]
    depth = table["depth"]
    assert (depth.field, depth.part, depth.hint, depth.value, depth.help) == ("depth", Inner, int, 3, "How deep.")
    assert table["kind"].value is Inner


def test_units_rename_and_explain():
    table = settings_of(Outer(), units={"depth": ("levels", "Number of levels.")})
    assert (table["levels"].field, table["levels"].help) == ("depth", "Number of levels.")
    assert "depth" not in table


def test_two_settings_of_one_name():
    with pytest.raises(ConfigError, match="setting 'depth' is defined by both Inner and Other: rename one of them"):
        settings_of(Outer(), Other())
    with pytest.raises(ConfigError, match="setting 'width' is defined by both Inner and Outer: rename one of them"):
        settings_of(Outer(), Other(), units={"depth": ("width", "")})


def test_help_of_a_class_without_source():
    made = type("Made", (Outer,), {})
    assert help_texts(made) == {"width": "How wide."}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("lr", "learning_rate"), ("gama", "gamma"), ("vlr", "vf_learning_rate"), ("xyzzy", None)],
)
def test_nearest_name(name, nearest):
    known = ["gamma", "learning_rate", "vf_learning_rate", "env"]
    expected = f"no setting {name!r}" + (f"; did you mean {nearest!r}?" if nearest else "")
    assert unknown_name("setting", name, known) == expected
