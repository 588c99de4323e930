"""What a model sees of a step, from the environment to the buffer and the network."""

import numpy as np
import pytest
import torch
from builders import SPACES, Scripted, accelerated, make_model, parameters

from rlzoo.algorithms import PPOClip
from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.envs import source as envs
from rlzoo.control.networks import GRU, Network
from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.distributions import IMPOSSIBLE
from rlzoo.core.seen import Seen


def collect(env, network, steps=24):
    """An evaluated buffer, and a function that makes its model."""

    def make():
        return network.build(env.observation_space, env.action_space, torch.Generator().manual_seed(0))

    noise = ActionNoise(env.action_space, env.num_envs, np.random.default_rng(0))
    return evaluate(make(), Collector(env, steps).collect(make_actor(make(), noise)).buffer), make


def test_map_keeps_what_is_absent_absent():
    seen = Seen(torch.ones(2, 3, 4), start=torch.zeros(2, 3, dtype=torch.bool))
    assert [x.shape for x in seen.tensors()] == [(2, 3, 4), (2, 3)]
    half = seen.map(lambda x: x[:1])
    assert half.obs.shape == (1, 3, 4)
    assert half.start.shape == (1, 3)
    assert half.legal is half.memory is None
    again = seen.with_tensors(x + 1 for x in seen.tensors())
    assert torch.equal(again.obs, seen.obs + 1)
    assert again.start.all()


def test_a_plain_tensor_stands_for_the_observation_alone():
    obs = torch.randn(2, 3, 4, dtype=torch.float64)
    assert Seen.of(obs) == Seen(obs)
    seen = Seen(obs)
    assert Seen.of(seen) is seen
    model = make_model()
    assert torch.equal(model(seen)[0].logits, model(obs)[0].logits)


def test_illegal_actions_are_out_of_the_policy_and_not_of_the_value():
    model, obs = make_model(SPACES["discrete"]), torch.randn(2, 3, 4, dtype=torch.float64)
    legal = torch.tensor([True, False, True]).expand(2, 3, 3)
    policy, value = model(Seen(obs, legal))
    assert (policy.logits[..., 1] == IMPOSSIBLE).all()
    assert torch.equal(policy.logits[..., [0, 2]], model(obs)[0].logits[..., [0, 2]])
    assert torch.equal(value, model(obs)[1])


@pytest.mark.parametrize("network", [Network(hidden=(5,)), GRU(cell_size=4, hidden=(5,))], ids=["mlp", "gru"])
def test_taxi_with_masked_actions(network):
    buffer, make = collect(envs.make("Taxi-v4", 3, 0), network)
    seen, model = buffer.obs, make()
    assert seen.obs.shape == (3, 25, 500)
    assert seen.legal.shape == (3, 25, 6)
    assert seen.legal.dtype == torch.bool
    assert not seen.legal.all()
    assert seen.legal[:, :-1].gather(2, buffer.action.unsqueeze(2)).squeeze(2)[buffer.mask].all()
    assert (seen.memory is None) == (seen.start is None) == (model.memory_size == 0)
    rows = buffer.rows(8 if model.memory_size else 1)
    logp = model.distribution(rows.obs).log_prob(rows.action)
    torch.testing.assert_close(logp.detach(), rows.logp, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_junk_of_a_gru_in_forced_steps_changes_nothing(fast):
    """The observation of a forced step is the final state, which the memory and the value need: all else is junk."""
    buffer, make = collect(Scripted([3, 5, 7]), GRU(cell_size=4, hidden=(5,), unroll=6))
    forced = ~buffer.mask
    assert forced.any()
    after_first = torch.zeros_like(buffer.obs.start)
    after_first[:, 1:-1] = forced[:, 1:] & (torch.arange(1, 24) % 6 > 0)  # where no row of the update begins
    junk = buffer.obs.replace(memory=torch.where(after_first[..., None], 1e3, buffer.obs.memory))
    spoiled = buffer.replace(
        obs=junk,
        action=torch.where(forced, 1, buffer.action),
        reward=torch.where(forced, 300.0, buffer.reward),
        logp=torch.where(forced, -7.0, buffer.logp),
    )
    weights = []
    for rows in (buffer, spoiled):
        model = accelerated(make()) if fast else make()
        algorithm = PPOClip(epochs=2, minibatch_size=12)
        algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), rows)
        weights.append(parameters(model))
    assert not torch.equal(weights[0], parameters(make()))
    assert torch.equal(*weights)
