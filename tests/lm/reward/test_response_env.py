"""Responses token by token, as a Gymnasium environment: the rewards of whole buffers, and Gymnasium's own checks."""

import gymnasium
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from lm_builders import experience, letters, make_env, make_model, move, single
from tiny import PAD

from rlzoo.lm.model.language_model import Reference
from rlzoo.lm.reward.gymnasium_env import ResponseEnv
from rlzoo.lm.reward.shaping import FixedKL, Moments, ScoreTreatment

TEXTS = ["ab", "cdefg", "h"]


def one_of(model, prompts=TEXTS, **settings):
    return ResponseEnv(make_env(model, prompts, **settings))


def reset_to(env, prompt):
    """Resets until the prompt comes."""
    while True:
        observation, info = env.reset()
        if info["prompt"] == prompt:
            return observation


TREATMENTS = {
    "raw": ScoreTreatment(),
    "clip and penalty": ScoreTreatment(clip=0.4, missing_eos_penalty=2.0),
    "reference": ScoreTreatment("reference", missing_eos_penalty=0.5),
}


@pytest.mark.parametrize(
    ("kl_estimator", "treatment"),
    [
        ("k1", "raw"),
        ("k1", "clip and penalty"),
        ("k2", "clip and penalty"),
        ("k3", "clip and penalty"),
        ("full", "clip and penalty"),
        ("full", "reference"),
    ],
)
def test_steps_by_hand_give_the_rewards_of_a_whole_buffer(kl_estimator, treatment):
    model = make_model(settings={"temperature": 0.8})
    settings = {
        "kl_estimator": kl_estimator, "treatment": TREATMENTS[treatment], "moments": Moments(4, 0.5, 9.0),
        "control": FixedKL(0.3), "reference": Reference(model), "max_new_tokens": 4, "seed": 3, "rows": 7,
    }  # fmt: skip
    move(model)
    whole, by_hand = make_env(model, TEXTS, **settings), one_of(model, **settings)
    buffer, _, metrics = experience(whole, seed=1)
    prompts, responses = whole.texts(buffer)
    assert set(buffer.mask.sum(1).tolist()) > {1, 4}
    assert 0 < metrics["ended"] < 1
    for i in range(7):
        observation = reset_to(by_hand, prompts[i])
        for t in torch.nonzero(buffer.mask[i]).flatten():
            seen = observation["tokens"][observation["attention_mask"] == 1]
            assert seen.tolist() == single(buffer.obs.columns(0, t + 1), i).token[0].tolist()
            observation, reward, terminated, truncated, info = by_hand.step(int(buffer.action[i, t]))
            assert reward == pytest.approx(float(buffer.reward[i, t]), abs=1e-5)
            assert (terminated, truncated) == (bool(buffer.terminated[i, t]), False)
        assert terminated
        assert info["response"] == responses[i]
        assert info["score"] == letters([prompts[i]], [responses[i]])[0]


def test_it_is_a_gymnasium_environment():
    check_env(one_of(make_model(), max_new_tokens=3), skip_render_check=True)  # there is nothing to render


def test_observations_are_padded_on_the_right():
    env = one_of(make_model(), ["abc", "d"], max_new_tokens=2)
    assert env.observation_space["tokens"].shape == (5,)
    assert env.action_space.n == 58
    observation, info = env.reset(seed=0)
    prompt = [0, 1, 2] if info["prompt"] == "abc" else [3]
    assert observation["tokens"].tolist() == prompt + [PAD] * (5 - len(prompt))
    assert observation["attention_mask"].tolist() == [1] * len(prompt) + [0] * (5 - len(prompt))
    observation, *_ = env.step(30)
    assert observation["tokens"].tolist() == [*prompt, 30] + [PAD] * (4 - len(prompt))


def test_a_step_needs_an_episode():
    env = one_of(make_model(), max_new_tokens=1)
    for _ in range(2):
        with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step"):
            env.step(0)
        env.reset()
        env.step(20)


def test_a_seed_decides_the_prompts():
    prompts = list("abcdefgh")
    env, other = (one_of(make_model(), prompts) for _ in range(2))

    def resets(env, seed):
        return [env.reset(seed=seed if i == 0 else None)[1]["prompt"] for i in range(50)]

    assert set(resets(env, 5)) == set(prompts)
    assert resets(env, 5) == resets(other, 5) != resets(other, 6)
