"""Settings without effect are named where they are given."""

import pytest

from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import configure
from rlzoo.runs.configuration.unused import unused

FIT = {"vf_learning_rate", "vf_epochs", "vf_minibatch_size"}


@pytest.mark.parametrize(
    ("algorithm", "settings", "names"),
    [
        ("ppo-clip", {}, set()),
        ("ppo-clip", {"vf_coef": 0}, {"clip_value", "vf_learning_rate", "vf_warmup"}),
        ("ppo-clip", {"stop_kl": 0.1}, {"compile"}),
        ("npg", {}, set()),
        ("npg", {"vf_epochs": 0}, FIT - {"vf_epochs"}),
        ("trpo", {}, {"learning_rate", "clip_coef", "minibatch_size"}),
        ("trpo", {"epochs": 2}, {"cg_iters", "cg_damping", "fisher_fraction"}),
        ("reinforce", {}, {"num_steps"}),
        ("reinforce", {"baseline": False}, {"num_steps", *FIT}),
        ("reinforce", {"estimator": "rloo"}, {"num_steps", "baseline", *FIT}),
        ("reinforce", {"estimator": "gae"}, set()),
    ],
)
def test_settings_without_effect(algorithm, settings, names):
    config = make_config(algorithm, "CartPole-v1", **settings)
    assert unused(config.to_dict()).keys() == names
    assert config.setup().minibatch_sizes.keys().isdisjoint(names)


def test_those_of_language_tasks():
    task = {"model": "m", "prompts": "p.txt", "reward": "r:r"}
    names = {"beta_horizon", "ptx_coef", "ptx_rows"}
    assert unused(make_config("ppo", "Prompts", **task).to_dict()).keys() == names
    compared = {"estimator": "rloo", "responses_per_prompt": 2, "vf_coef": 0.0}
    idle = {*names, "num_steps", "clip_value", "vf_learning_rate", "vf_warmup", "critic"}
    assert unused(make_config("ppo", "Prompts", **task, **compared).to_dict()).keys() == idle - {"num_steps"}
    untrained = unused(make_config("ppo", "Prompts", **task, vf_coef=0.0).to_dict())
    assert untrained["critic"] == "with vf_coef 0"
    both = {"ptx": "texts.txt", "beta_target": 6.0}
    assert unused(make_config("ppo", "Prompts", **task, **both).to_dict()) == {}


def test_only_what_the_user_gave_is_named():
    def lines(**settings):
        return [x for x in configure("trpo", "CartPole-v1", None, True, settings)[1] if "does nothing" in x]

    assert lines() == lines(max_kl=0.02) == lines(learning_rate=1.0, epochs=3) == []
    assert lines(learning_rate=1.0) == ["learning_rate does nothing without epochs"]
