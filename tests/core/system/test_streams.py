"""The random streams of a run."""

import itertools

import numpy as np
import pytest
import torch
from simulated_gpu import GPU, simulated

from rlzoo.core.system.streams import STREAMS, evaluation_seeds, number, stream, torch_generator


def words(sequence):
    return tuple(sequence.generate_state(4).tolist())


def test_streams_are_the_children_of_the_seed_in_the_order_of_the_table():
    children = np.random.SeedSequence(7).spawn(len(STREAMS))
    assert [words(stream(7, name)) for name in STREAMS] == [words(child) for child in children]
    assert list(STREAMS) == ["env", "action", "minibatch", "init", "evaluation", "benchmark"]


def test_streams_of_other_seeds_names_and_paths_differ():
    found = {words(stream(seed, name, *path)) for seed, name, path in
             itertools.product(range(5), STREAMS, [(), (0,), (1,), (0, 0)])}  # fmt: skip
    assert len(found) == 5 * len(STREAMS) * 4


def test_unknown_stream_is_an_error():
    with pytest.raises(KeyError):
        stream(0, "weather")


def test_number_is_one_of_32_bits():
    numbers = [number(stream(seed, "env")) for seed in range(100)]
    assert numbers == [number(stream(seed, "env")) for seed in range(100)]
    assert 2**30 < max(numbers) < 2**32
    assert min(numbers) >= 0


def test_torch_generators_follow_their_stream():
    first, again, other = (torch.randn(3, generator=torch_generator(stream(seed, "init"))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_torch_generator_is_made_for_its_device():
    with simulated():
        assert torch_generator(stream(1, "action")).device.type == "cpu"
        generator = torch_generator(stream(1, "action"), GPU)
        assert generator.device.type == GPU
        torch.empty(3, device=GPU).normal_(generator=generator)


def test_environment_and_actor_of_an_evaluation_have_seeds_of_their_own():
    env_seed, actor_seed = evaluation_seeds(3)
    assert env_seed != actor_seed
