"""The random streams of a run, all derived from its seed.

Each purpose has a stream of its own. Evaluating more often, for example, does not change training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlzoo.core.system.errors import require

STREAMS = {
    "env": 0,  # environments; order of prompts and texts
    "action": 1,  # sampled actions
    "minibatch": 2,  # order of minibatches
    "init": 3,  # initial parameters
    "evaluation": 4,  # evaluations of a run
    "benchmark": 5,  # evaluations of a suite
}
"""Position of each stream among the children of the run's seed."""


def stream(seed: int, name: str, *path: int) -> np.random.SeedSequence:
    """The stream `name` of a run; `path` selects an independent stream within it."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS[name], *path))


def evaluation_seeds(seed: int) -> tuple[int, int]:
    """Seeds of the environment and of the actor of an evaluation with this seed."""
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    env_seed, actor_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    return env_seed, actor_seed


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a generator, with the number of its children, which NumPy's state leaves out."""
    bits: Any = rng.bit_generator
    return {**bits.state, "spawned": bits.seed_seq.n_children_spawned}


def restore_rng(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Restores what `rng_state` gave, or NumPy's state of an older checkpoint."""
    bits: Any = rng.bit_generator
    bits.state, spawned = state, bits.seed_seq.n_children_spawned
    bits.seed_seq.spawn(state.get("spawned", spawned) - spawned)


def number(sequence: np.random.SeedSequence) -> int:
    """An integer seed of 32 bits from a stream, for libraries that take integer seeds."""
    return int(sequence.generate_state(1)[0])


def torch_generator(sequence: np.random.SeedSequence, device: str = "cpu") -> torch.Generator:
    """A PyTorch generator seeded from a stream."""
    return torch.Generator(device).manual_seed(number(sequence))
