"""The table of settings."""

import dataclasses
from dataclasses import dataclass, field

import gymnasium
import pytest

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune.reward_model import RewardModelSettings
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.settings import PEERS, help_texts, settings_of, unknown_name
from rlzoo.runs.registry import ALGORITHMS


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


def test_a_function_that_is_a_dataclass_is_a_value():
    @dataclass(frozen=True)
    class Score:
        bonus: float = 1.0

        def __call__(self, prompts, responses):
            return [self.bonus for _ in responses]

    config = make_config("ppo", "RandomWalks", reward=Score(2.0))
    assert "reward" in config.objects
    assert "bonus" not in config.table
    assert make_config("ppo", Score()).env == Score()
    with pytest.raises(ConfigError, match=r"env must be a Gymnasium id, .* got EnvSpec\("):
        make_config("ppo", gymnasium.spec("CartPole-v1"))


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


def test_sources_are_parsed_once(monkeypatch):
    settings = settings_of(Outer())
    monkeypatch.delattr("inspect.getsource")
    assert settings_of(Outer()) == settings


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("lr", "learning_rate"), ("gama", "gamma"), ("vlr", "vf_learning_rate"), ("xyzzy", None)],
)
def test_nearest_name(name, nearest):
    known = ["gamma", "learning_rate", "vf_learning_rate", "env"]
    expected = f"no setting {name!r}" + (f"; did you mean {nearest!r}?" if nearest else "")
    assert unknown_name("setting", name, known) == expected


EVERY_PART = [
    make_config(algorithm, "CartPole-v1") if env == "control" else make_config(algorithm, "RandomWalks")
    for algorithm in ALGORITHMS
    for env in ("control", "language")
]


@pytest.mark.parametrize("config", [*EVERY_PART, SFTSettings(), RewardModelSettings()])
def test_groups_of_the_help_page_name_fields(config):
    settings = settings_of(config)
    for part in {setting.part for setting in settings.values()}:
        grouped = [field for fields in getattr(part, "groups", {}).values() for field in fields]
        fields = {field.name for field in dataclasses.fields(part)}
        assert {*grouped, *getattr(part, "advanced", ())} <= fields
        assert len(grouped) == len({*grouped})
    shown = {setting.name for setting in settings.values() if not setting.advanced}
    assert {"learning_rate", "vf_learning_rate"} & shown
    assert "seed" in shown


def test_groups_have_plain_names():
    titles = {setting.group for config in EVERY_PART for setting in config.table.values()}
    assert titles == {
        *("Run", "REINFORCE", "NPG", "TRPO", "PPO-penalty", "PPO-clip"),
        *("GAE", "MonteCarlo", "Environment", "Network", "Language task", "Reward"),
        *("Evaluation and files", "Memory and speed"),
    }


def test_names_of_peers_are_those_of_no_setting_here_but_lead_to_one():
    ours = {name for config in EVERY_PART for name in config.table} | {*settings_of(SFTSettings()), "out"}
    assert PEERS.keys() <= ours
    for name, theirs in PEERS.items():
        for peer in theirs.split():
            assert unknown_name("setting", peer, [name, "zzz"]) == f"no setting {peer!r}; did you mean {name!r}?"
    assert unknown_name("option", "--batch-size", ["--minibatch-responses", "--b"]).endswith("'--minibatch-responses'?")
    assert unknown_name("setting", "lr", ["learning_rate", "l"]).endswith("'learning_rate'?")
