"""`Buffer`: masked statistics, rows and minibatches."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from builders import make_buffer, make_model
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from simulated_gpu import GPU, simulated

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Categorical
from rlzoo.core.kl import k1
from rlzoo.core.system.errors import ConfigError


def buffer_of(x, mask):
    """A buffer whose reward is `x`; both are nested lists (N, T)."""
    reward, mask = torch.tensor(x, dtype=torch.float64), torch.tensor(mask)
    ends = torch.zeros_like(mask)
    return Buffer(torch.zeros(*mask.shape, 1), torch.zeros_like(mask, dtype=torch.int64), reward, ends, ends, mask)


def test_mean_is_over_unmasked_steps():
    buffer = buffer_of([[1, 2, 100], [6, -100, 3]], [[True, True, False], [True, False, True]])
    assert buffer.mean(buffer.reward) == 3.0
    assert buffer.num_steps == 4


def test_whiten_uses_the_biased_standard_deviation_of_unmasked_steps():
    buffer = buffer_of([[1, 3, 100], [5, -100, 7]], [[True, True, False], [True, False, True]])
    white = buffer.whiten(buffer.reward)[buffer.mask]  # mean 4, variance (9 + 1 + 1 + 9) / 4 = 5
    expected = torch.tensor([-3, -1, 1, 3], dtype=torch.float64) / 5**0.5
    torch.testing.assert_close(white, expected, rtol=1e-5, atol=0)


def test_whitened_is_a_copy_with_whitened_advantages():
    buffer = spread()
    white = buffer.whitened
    assert torch.equal(white.advantage, buffer.whiten(buffer.advantage))
    assert torch.equal(white.reward, buffer.reward)
    assert float(white.mean(white.advantage.square())) == pytest.approx(1)


@given(st.floats(-1e15, 1e15), st.integers(1, 3000), st.integers(0, 9), st.booleans())
def test_whitened_constant_is_zero_in_single_precision(constant, steps, masked, first):
    x = torch.full((1, steps + masked), constant)
    step = torch.arange(steps + masked)[None]
    mask = step >= masked if first else step < steps
    buffer = Buffer(x, x, x, ~mask, ~mask, mask)
    assert (buffer.whiten(torch.where(mask, x, 0.0))[mask] == 0).all()


def test_a_buffer_without_rows_is_whitened():
    x, mask = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)
    assert Buffer(x, x, x, mask, mask, mask).whiten(x).shape == (0, 3)


def test_empty_mask_gives_zero_mean_and_finite_whitening():
    buffer = buffer_of([[1, 2]], [[False, False]])
    assert buffer.mean(buffer.reward) == 0
    assert buffer.whiten(buffer.reward).isfinite().all()


def test_rows_cut_time_into_contexts_and_drop_what_was_seen_last():
    buffer = make_buffer(make_model(), rows=2, steps=6)
    steps = buffer.rows(1)
    assert steps.obs.shape == (12, 1, 4)
    assert torch.equal(steps.obs[7, 0], buffer.obs[1, 1])
    assert steps.value.shape == steps.mask.shape == (12, 1)
    assert torch.equal(steps.logp[:, 0], buffer.logp.reshape(-1))

    halves = buffer.rows(3)
    assert torch.equal(halves.obs[3], buffer.obs[1, 3:6])
    assert torch.equal(halves.reward[3], buffer.reward[1, 3:])


def test_what_an_estimator_gives_must_have_the_shape_of_the_mask():
    buffer = make_buffer(make_model(), rows=2, steps=6)
    with pytest.raises(ConfigError, match=r"^the estimator's .* return_ must be \(2, 6\), not .*\(2, 7\)\]$"):
        buffer.replace(return_=buffer.value).rows(1)


def test_context_zero_is_the_whole_row():
    buffer = make_buffer(make_model(), rows=2, steps=6)
    whole = buffer.rows(0)
    assert whole.mask.shape == (2, 6)
    assert torch.equal(whole.obs, buffer.obs[:, :-1])


@given(st.integers(1, 12), st.integers(0, 4), st.integers(1, 60), st.integers(0, 99))
def test_minibatches_of_an_epoch_cover_every_row_once(rows, context, size, seed):
    """Their size counts steps, or rows if a row is the unit (context 0)."""
    x = torch.arange(rows * (context or 3), dtype=torch.float32).reshape(rows, -1)
    mask = torch.ones_like(x, dtype=torch.bool)
    whole = Buffer(x, x, x, ~mask, ~mask, mask).rows(context)
    minibatches = list(whole.minibatches(size, np.random.default_rng(seed)))

    sizes = [minibatch.num_rows for minibatch in minibatches]
    expected = max(1, size // (context or 1))
    assert sizes[:-1] == [expected] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= expected
    together = torch.cat([minibatch.reward for minibatch in minibatches])
    assert torch.equal(together[together[:, 0].argsort()], whole.reward)


def test_row_size_is_the_steps_of_a_row_unless_the_row_is_the_unit():
    buffer = make_buffer(make_model(), rows=2, steps=6)
    assert [buffer.rows(context).row_size for context in (1, 3, 6, 8, 0)] == [1, 3, 6, 6, 1]
    halves = buffer.rows(3)
    assert [part.row_size for part in halves.minibatches(6, np.random.default_rng(0))] == [3, 3]
    assert next(halves.micro_batches(3)).row_size == 3


@pytest.mark.parametrize("context", [0, 1, 3])
def test_the_minibatch_of_all_rows_is_the_buffer(context):
    buffer, rng = make_buffer(make_model(), rows=2, steps=6).rows(context), np.random.default_rng(0)
    assert list(buffer.minibatches("all", rng)) == [buffer]
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state  # nothing is shuffled
    empty = buffer.replace(mask=torch.zeros_like(buffer.mask))
    assert list(empty.minibatches("all", rng)) == []


def test_minibatch_smaller_than_a_row_is_one_row():
    parts = list(make_buffer(make_model(), rows=2, steps=6).rows(3).minibatches(2, np.random.default_rng(0)))
    assert [part.num_rows for part in parts] == [1] * 4


def test_minibatches_keep_the_fields_of_a_step_together():
    buffer = make_buffer(make_model()).rows(1)
    buffer = buffer.replace(old=Categorical(buffer.obs))
    for part in buffer.minibatches(5, np.random.default_rng(0)):
        for row in range(part.num_rows):
            (source,) = torch.nonzero((buffer.obs == part.obs[row]).all(-1).all(-1)).flatten()
            assert part.logp[row] == buffer.logp[source]
            assert torch.equal(part.old.logits[row], buffer.obs[source])


def test_epochs_differ_in_order_and_repeat_with_the_seed():
    buffer = make_buffer(make_model()).rows(1)
    rng = np.random.default_rng(3)
    first, second = (torch.cat([m.obs for m in buffer.minibatches(8, rng)]) for _ in range(2))
    again = torch.cat([m.obs for m in buffer.minibatches(8, np.random.default_rng(3))])
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_minibatch_without_an_unmasked_step_is_left_out():
    buffer = buffer_of([[1], [2], [3]], [[True], [False], [True]])
    parts = list(buffer.minibatches(1, np.random.default_rng(0)))
    assert sorted(float(part.reward) for part in parts) == [1, 3]


def test_map_leaves_absent_fields_absent():
    buffer = buffer_of([[1.0, 2.0]], [[True, True]]).map(lambda x: x[:1])
    assert len(buffer.logp) == len(buffer.advantage) == 0
    assert buffer.old is None


def test_buffer_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        buffer_of([[1.0]], [[True]]).reward = None


def test_fields_of_unequal_shape_are_an_error():
    buffer = buffer_of([[1.0, 2.0]], [[True, True]])
    with pytest.raises(TypeCheckError, match="mask"):
        buffer.replace(mask=buffer.mask[:, :1])


def test_arguments_of_unequal_shape_are_an_error():
    with pytest.raises(TypeCheckError, match="logq"):
        k1(torch.zeros(2), torch.zeros(3))


def spread(rows=7, steps=5, seed=0):
    """Random rewards, advantages and masks; some rows may be masked as a whole."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(2, rows, steps)))
    mask = torch.from_numpy(rng.random((rows, steps)) < 0.6)
    mask[rng.integers(rows)] = False
    mask[rng.integers(rows)] |= True
    no = torch.zeros_like(mask)
    return Buffer(torch.arange(rows * steps).view(rows, steps, 1), no.long(), x[0], no, no, mask, advantage=x[1])


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 60), st.integers(0, 99))
def test_means_over_micro_batches_add_up_to_that_of_the_whole(rows, steps, size, seed):
    whole = spread(rows, steps, seed)
    parts = list(whole.micro_batches(size))
    assert [part.num_rows for part in parts[:-1]] == [max(1, size // steps)] * (len(parts) - 1)
    assert torch.equal(torch.cat([part.obs for part in parts]), whole.obs)
    total = sum(float(part.mean(part.reward)) for part in parts)
    assert total == pytest.approx(float(whole.mean(whole.reward)), abs=1e-12)


def test_a_mean_in_uneven_micro_batches_by_hand():
    whole = buffer_of([[1, 2], [6, -100], [3, 100]], [[True, True], [True, False], [True, False]])
    parts = list(whole.micro_batches(4))
    assert [part.num_rows for part in parts] == [2, 1]
    assert [float(part.mean(part.reward)) for part in parts] == [(1 + 2 + 6) / 4, 3 / 4]


def test_one_micro_batch_is_the_buffer_itself():
    whole = spread()
    for steps in (None, 35, 1000):
        assert list(whole.micro_batches(steps)) == [whole]
    part = whole.part(slice(2, 5))
    assert list(part.micro_batches(None)) == [part]


def test_a_part_keeps_its_weight_when_it_is_cut_or_changed_and_a_minibatch_is_a_whole():
    whole = spread()
    part = whole.part(slice(1, 6)).replace(reward=torch.ones(5, 5).double())
    share = int(part.mask.sum()) / whole.num_steps
    assert float(part.mean(part.reward)) == pytest.approx(share)
    assert sum(float(x.mean(x.reward)) for x in part.micro_batches(10)) == pytest.approx(share)
    for minibatch in whole.minibatches(10, np.random.default_rng(0)):
        assert float(minibatch.mean(torch.ones(minibatch.mask.shape).double())) == pytest.approx(1)


def test_fields_survive_what_changes_a_buffer():
    buffer = spread().replace(group_size=4)
    buffer = buffer.replace(old=Categorical(torch.randn(7, 5, 3)))
    tensors = buffer.tensors()
    again = buffer.with_tensors(x.clone() for x in tensors)
    assert all(map(torch.equal, again.tensors(), tensors))
    assert again.group_size == buffer.map(lambda x: x[:4]).group_size == buffer.rows(0).group_size == 4
    part = next(buffer.micro_batches(10))
    assert part.group_size == 4
    assert part.old.logits.shape == (2, 5, 3)


def test_sample_is_a_part_of_the_rows_with_steps():
    reward = np.arange(40).repeat(3).reshape(40, 3).astype(float).tolist()
    buffer = buffer_of(reward, [[i % 4 > 0, False, i % 4 == 1] for i in range(40)])
    part = buffer.sample(0.3, np.random.default_rng(0))
    rows = part.reward[:, 0].tolist()
    assert len(rows) == 9  # of 30
    assert rows == sorted(set(rows))
    assert all(i % 4 > 0 for i in rows)
    assert rows != buffer.sample(0.3, np.random.default_rng(1)).reward[:, 0].tolist()
    assert buffer.sample(0.001, np.random.default_rng(0)).num_rows == 1
    hundred = buffer_of([[0.0]] * 100, [[True]] * 100)
    assert [hundred.sample(x / 100, np.random.default_rng(0)).num_rows for x in range(1, 101)] == [*range(1, 101)]


def test_sample_of_everything_is_the_buffer_and_draws_nothing():
    buffer, rng = buffer_of([[1.0]], [[True]]), np.random.default_rng(0)
    before = rng.bit_generator.state
    assert buffer.sample(1.0, rng) is buffer
    assert rng.bit_generator.state == before


def test_the_host_waits_once_for_all_minibatches_of_an_epoch():
    """To learn which have no step. The random order is sent to the GPU."""
    buffer = make_buffer(make_model(), rows=8, steps=4).rows(1)
    expected = [x.reward for x in buffer.minibatches(4, np.random.default_rng(0))]
    with simulated() as gpu:
        moved = buffer.map(lambda x: x.to(GPU))
        gpu.waits.clear()
        minibatches = list(moved.minibatches(4, np.random.default_rng(0)))
        assert gpu.waits == ["_to_copy", "_to_copy"]
        assert all(torch.equal(x.reward.cpu(), y) for x, y in zip(minibatches, expected, strict=True))


def test_absent_fields_stay_absent_in_a_pickle():
    buffer = pickle.loads(pickle.dumps(make_buffer(make_model(), rows=2, steps=6)))
    assert len(buffer.rows(1).advantage) == 0


@pytest.mark.parametrize("kind", [lambda x: x.float(), lambda x: x.numpy()])
def test_what_an_estimator_gives_must_be_tensors_of_the_rewards_kind(kind):
    buffer = make_buffer(make_model(), rows=2, steps=6)
    with pytest.raises(ConfigError, match=r"^the estimator's advantage and return_ must be of torch\.float64$"):
        dataclasses.replace(buffer, advantage=kind(buffer.reward)).rows(1)


def test_steps_that_fill_up_a_row_are_masked():
    buffer = make_buffer(make_model(), steps=8)
    assert buffer.mask[:, -1].any()
    assert buffer.rows(3).num_steps == buffer.num_steps
