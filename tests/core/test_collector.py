"""Collection on a scripted environment whose every step is known."""

import numpy as np
import pytest
import torch
from builders import Scripted, make_buffer, make_model

from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.envs import source as envs
from rlzoo.control.networks import GRU, Network
from rlzoo.core.actors import ModelActor
from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.env import Episode
from rlzoo.core.models import ActorCritic, Value
from rlzoo.core.system.errors import ConfigError, EnvError


def make_collector(lengths, num_steps=5, whole_episodes=False):
    return Collector(Scripted(lengths), num_steps, whole_episodes)


def model_for(env, seed=0, **network):
    return Network(hidden=(8,), **network).build(
        env.observation_space, env.action_space, torch.Generator().manual_seed(seed)
    )


def times(buffer, row):
    return buffer.obs[row, :, 2].int().tolist()


def noise_for(env, seed=0):
    return ActionNoise(env.action_space, env.num_envs, np.random.default_rng(seed))


def collect(collector, noise=None):
    """The buffer and the episodes that ended in it."""
    actor = make_actor(model_for(collector.env), noise or noise_for(collector.env))
    return collector.collect(actor)[:2]


def collect_from(env, model, num_steps):
    return Collector(env, num_steps).collect(make_actor(model, noise_for(env))).buffer


def test_buffer_holds_what_the_environment_did():
    buffer, _ = collect(make_collector([3, 2]))
    assert times(buffer, 0) == [0, 1, 2, 3, 0, 1]
    assert times(buffer, 1) == [0, 1, 2, 0, 1, 2]
    assert buffer.reward.tolist() == [[1, 2, 3, 0, 1], [1, 2, 0, 1, 2]]
    assert buffer.terminated.int().tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert buffer.truncated.int().tolist() == [[0, 0, 0, 0, 0], [0, 1, 0, 0, 1]]
    assert buffer.mask.int().tolist() == [[1, 1, 1, 0, 1], [1, 1, 0, 1, 1]]
    assert buffer.num_steps == 8


def test_rows_go_on_in_the_next_buffer():
    collector = make_collector([3, 2])
    first, second = collect(collector)[0], collect(collector)[0]
    assert torch.equal(second.obs[:, 0], first.obs[:, -1])
    assert times(second, 0) == [1, 2, 3, 0, 1, 2]
    assert second.mask.int().tolist() == [[1, 1, 0, 1, 1], [0, 1, 1, 0, 1]]


def test_value_after_a_truncation_is_that_of_the_final_observation():
    collector = make_collector([3, 2])
    model = model_for(collector.env)
    buffer = evaluate(model, collect(collector)[0])
    for row, t in torch.nonzero(buffer.truncated):
        final = torch.tensor([[float(row), buffer.obs[row, t, 1], 2.0]])
        torch.testing.assert_close(buffer.value[row, t + 1], model.value(final)[0].detach())


def test_episodes_are_counted_across_buffers():
    collector = make_collector([3, 7], num_steps=5)
    episodes = [collect(collector)[1] for _ in range(3)]
    assert episodes == [
        [Episode(6.0, 3)],
        [Episode(6.0, 3), Episode(28.0, 7)],
        [Episode(6.0, 3), Episode(6.0, 3), Episode(28.0, 7)],
    ]


def test_a_buffer_has_a_step_of_the_policy_even_if_all_copies_start_again_at_once():
    collector = make_collector([3, 3], num_steps=1)
    collected = [collect(collector) for _ in range(7)]
    assert [times(buffer, 0) for buffer, _ in collected] == [[0, 1], [1, 2], [2, 3]] * 2 + [[0, 1]]
    assert all(buffer.mask.all() for buffer, _ in collected)
    assert [len(episodes) for _, episodes in collected] == [0, 0, 2] * 2 + [0]


def test_returned_arrays_may_be_overwritten_by_the_environment():
    env = envs.make("CartPole-v1", 3, 0)
    buffer = collect_from(env, model_for(env), 20)
    assert (buffer.obs[:, 1:] != buffer.obs[:, :-1]).any(-1).all()


def test_the_action_is_kept_as_the_policy_chose_it():
    class Shifting(Scripted):
        def step(self, action):
            action += 1
            return super().step(action)

    actions = Collector(Shifting([3, 7]), 5).collect(lambda *_: np.zeros(2, np.int64)).buffer.action
    assert not actions.any()


def test_whole_episodes_take_one_episode_from_each_copy():
    collector = make_collector([3, 40, 1], whole_episodes=True)
    buffer, episodes = collect(collector)
    assert buffer.mask.shape == (3, 40)
    assert buffer.obs.shape == (3, 41, 3)
    assert buffer.mask.sum(1).tolist() == [3, 40, 1]
    for row, length in enumerate((3, 40, 1)):
        assert buffer.mask[row, :length].all()
        assert times(buffer, row)[: length + 1] == list(range(length + 1))
        assert (buffer.terminated | buffer.truncated)[row, length - 1]
    assert episodes == [Episode(1.0, 1), Episode(6.0, 3), Episode(820.0, 40)]


def test_whole_episodes_start_afresh_in_every_buffer():
    collector = make_collector([3, 40], whole_episodes=True)
    for _ in range(2):
        buffer, episodes = collect(collector)
        assert (buffer.obs[:, 0, 2] == 0).all()
        assert episodes == [Episode(6.0, 3), Episode(820.0, 40)]


def test_whole_episodes_that_never_end_are_an_error(monkeypatch):
    monkeypatch.setattr("rlzoo.core.collector.ENDLESS", 100)
    with pytest.raises(EnvError, match="an episode has not ended after 100 steps: whole episodes must end"):
        collect(make_collector([3, 10**9], whole_episodes=True))


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_collector_goes_on_from_its_state_to_the_bit(whole_episodes):
    collector = make_collector([3, 7], whole_episodes=whole_episodes)
    collect(collector)
    state = collector.state_dict()
    expected, episodes = collect(collector)
    other = make_collector([3, 7], whole_episodes=whole_episodes)
    other.load_state_dict(state)
    buffer, other_episodes = collect(other)
    assert other_episodes == episodes
    for name in ("obs", "action", "reward", "terminated", "truncated", "mask"):
        assert torch.equal(getattr(buffer, name), getattr(expected, name))


def test_the_environment_gets_all_keys_of_its_state(monkeypatch):
    collector, states = make_collector([3, 7]), []
    collect(collector)
    state = {**collector.state_dict(), "env": {"copies": ["a", "b"], "clock": 5}}
    monkeypatch.setattr(collector.env, "load_state_dict", states.append)
    collector.load_state_dict(state)
    assert states == [{"copies": ["a", "b"], "clock": 5}]


def test_without_the_state_of_the_environment_new_episodes_start():
    collector = make_collector([3, 7])
    collect(collector)
    state = {**collector.state_dict(), "env": None}
    other = make_collector([3, 7])
    other.load_state_dict(state)
    buffer, episodes = collect(other)
    assert times(buffer, 0)[0] == times(buffer, 1)[0] == 0
    assert episodes == [Episode(6.0, 3)]


def test_actor_is_told_which_rows_are_forced():
    collector, seen = make_collector([3, 2]), []

    def actor(obs, forced, starts):
        seen.append(forced.tolist())
        return np.zeros(2, np.int64)

    buffer = collector.collect(actor).buffer
    assert np.array_equal(np.transpose(seen), ~buffer.mask.numpy())


def test_actor_is_told_after_a_resume_too_where_episodes_begin():
    def starts_of(collector):
        seen = []

        def actor(obs, forced, starts):
            seen.append(starts.tolist())
            return np.zeros(2, np.int64)

        collector.collect(actor)
        return seen

    collector = make_collector([3, 7])
    starts_of(collector)
    other = make_collector([3, 7])
    other.load_state_dict(collector.state_dict())
    expected = starts_of(collector)
    assert starts_of(other) == expected == [[False, False]] * 3 + [[True, True], [False, False]]


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_an_episode_that_ends_in_a_forced_step_is_an_error(whole_episodes):
    class OpponentWins(Scripted):
        """Its second step is the opponent's."""

        def step(self, action):
            obs, reward, terminated, truncated, forced = super().step(action)
            return obs, reward, terminated, truncated, forced | (self.time == 2)

    with pytest.raises(EnvError, match="an episode ended in a forced step"):
        collect(Collector(OpponentWins([3, 3]), 5, whole_episodes))


def test_a_truncation_without_a_forced_step_is_an_error():
    class SameStep(Scripted):
        def step(self, action):
            obs, reward, terminated, truncated, forced = super().step(action)
            return obs, reward, terminated, truncated, np.zeros_like(forced)

    assert collect(Collector(SameStep([3]), 5))  # an end that is a terminal state needs no value
    with pytest.raises(EnvError, match="the step after a truncation must be forced: it observes the final state"):
        collect(Collector(SameStep([3, 3]), 5))


def test_a_termination_without_a_forced_step_is_an_error_for_a_network_with_memory():
    class SameStep(Scripted):
        def step(self, action):
            *others, forced = super().step(action)
            return *others, np.zeros_like(forced)

    env = SameStep([3])
    model = GRU(cell_size=4).build(env.observation_space, env.action_space)
    with pytest.raises(EnvError, match="the step after a termination must be forced for a network with memory"):
        Collector(env, 5).collect(make_actor(model, noise_for(env)))


def test_a_memory_that_training_would_not_see_is_an_error():
    env = Scripted([3, 3])
    model = model_for(env)
    forward = model.policy.forward
    model.policy.forward = lambda features, memory=None: (forward(features)[0], torch.ones(2, 1))
    with pytest.raises(ConfigError, match="the policy returns a memory, which training does not see"):
        Collector(env, 5).collect(ModelActor(model, lambda policy: policy.mode))


@pytest.mark.parametrize("network", [{}, {"shared_trunk": True, "normalize_obs": True}])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_ratio_is_one_after_evaluate(env_id, network):
    env = envs.make(env_id, 4, 0)
    model = model_for(env, **network)
    batch = evaluate(model, collect_from(env, model, 64)).rows(1)
    logp = model.distribution(batch.obs).log_prob(batch.action).detach()
    assert float((torch.exp(logp - batch.logp) - 1).abs().max()) < 1e-6


def test_stored_log_probability_is_that_of_the_unclipped_action():
    env = envs.make("Pendulum-v1", 4, 0)
    model = model_for(env, log_std_init=1.0)
    buffer = collect_from(env, model, 64)
    assert (buffer.action.abs() > 2).any()
    evaluated = evaluate(model, buffer)
    assert torch.equal(evaluated.action, buffer.action)
    logp = model.distribution(buffer.obs[:, :-1]).log_prob(buffer.action)
    torch.testing.assert_close(evaluated.logp, logp.detach())


def test_actor_is_told_of_an_episode_that_begins_after_one_that_ended_with_the_last_buffer():
    collector, seen = make_collector([5]), []

    def actor(obs, forced, starts):
        seen.append(bool(starts[0]))
        return np.zeros(1, np.int64)

    for _ in range(2):
        collector.collect(actor)
    assert seen == [True, *[False] * 4, False, True, *[False] * 3]


def test_a_restart_drops_episodes_that_had_begun():
    collector = make_collector([7])
    collect(collector)
    collector.restart()
    collect(collector)
    assert collect(collector)[1] == [Episode(28.0, 7)]


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_after_an_interruption_new_episodes_start(whole_episodes):
    """The environment has gone on, so the last observation that was kept is not its own."""
    collector = make_collector([7], whole_episodes=whole_episodes)
    collect(collector)
    steps = iter(range(3))

    def interrupted(obs, forced, starts):
        if next(steps) == 2:
            raise KeyboardInterrupt
        return np.zeros(1, np.int64)

    with pytest.raises(KeyboardInterrupt):
        collector.collect(interrupted)
    assert times(collect(collector)[0], 0)[:4] == [0, 1, 2, 3]


def test_returns_are_summed_in_double_precision():
    collector = make_collector([6001], num_steps=6001)
    episodes = collector.collect(lambda obs, forced, starts: np.zeros(1, np.int64)).episodes
    assert episodes[0].return_ == 6001 * 6002 / 2


def test_where_episodes_begin_is_in_the_state():
    def starts_of(collector):
        seen = []
        collector.collect(lambda obs, forced, starts: seen.append(starts.tolist()) or np.zeros(2, np.int64))
        return seen

    collector, other = (Collector(Scripted([5, 7]), 5) for _ in range(2))
    starts_of(collector)
    other.load_state_dict(collector.state_dict())
    expected = starts_of(collector)
    assert starts_of(other) == expected
    assert expected[1] == [True, False]


class Counted(Scripted):
    log_info, sums = ("x",), np.ones((1, 2))

    def info_sums(self):
        sums, self.sums = self.sums, np.zeros((1, 2))
        return sums


def test_sums_of_info_from_before_are_not_counted():
    collector = Collector(Counted([3, 7]), 5)  # which something else has stepped before
    assert collector.collect(lambda *_: np.zeros(2, np.int64)).metrics == {}


def test_a_value_that_is_a_view_of_a_parameter_is_kept_as_it_was():
    class Constant(Value):
        def __init__(self):
            super().__init__()
            self.v = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, features):
            return self.v.expand(features.shape[:-1])

    model = ActorCritic(make_model().policy, Constant())
    buffer = evaluate(model, make_buffer(make_model()))
    model.value.v.data.fill_(5.0)
    assert buffer.value.unique().tolist() == [1.0]
