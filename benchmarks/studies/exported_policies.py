"""Exported policies beside the policy itself: largest difference, same actions, and steps per second.

    pip install -e '.[onnx]'
    python benchmarks/studies/exported_policies.py

Each form of the policy acts on the same 10,000 observations, one after another as in an environment, in one thread.
The forms take turns, so that a slow minute of the machine hits all alike. The C header is compiled with `cc -O3`; the
loop around it is in C too.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import torch
import tyro

from rlzoo import Network
from rlzoo.control.deploy import ControlPolicy

RESULT = Path(__file__).parents[1] / "results" / "exported-policies.md"
ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
HEADER_LOOP = """
#include "policy.h"
void act(const float *obs, {kind} *action, int n) {{
  for (int i = 0; i < n; ++i) rlzoo_policy(obs + i * RLZOO_OBS_SIZE, action + i * RLZOO_ACTION_SIZE);
}}
"""
Play = Callable[[Any], Any]
"""Observations (N, D) -> actions (N, ...), acting on each observation in turn."""


def make_policy(env_id: str) -> ControlPolicy:
    """A policy with the default network and a normaliser, far from its initial parameters."""
    env = gymnasium.make(env_id)
    generator = torch.Generator().manual_seed(0)
    model = Network(normalize_obs=True).build(env.observation_space, env.action_space, generator)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return ControlPolicy(model, env.observation_space, env.action_space)


def forms(policy: ControlPolicy, folder: Path) -> dict[str, Play]:
    """The policy in each form, by name."""

    def one_by_one(act: Play) -> Play:
        return lambda obs: np.stack([act(x) for x in obs])

    model = policy.model

    @torch.no_grad()
    def in_torch(x: Any) -> Any:
        return model.act(torch.from_numpy(x[None]))[0].mode.numpy()[0]

    low, high = getattr(policy.action_space, "low", None), getattr(policy.action_space, "high", None)
    clip = (lambda action: action) if low is None else (lambda action: np.clip(action, low, high))

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(policy.export("onnx", {}), options)

    return {
        "PyTorch module": one_by_one(lambda x: clip(in_torch(x))),
        "`load_policy`": one_by_one(policy),
        "ONNX Runtime": one_by_one(lambda x: session.run(None, {"obs": x[None]})[0][0]),
        "C header": in_c(policy, folder),
    }


def in_c(policy: ControlPolicy, folder: Path) -> Play:
    kind, number = ("float", np.float32) if policy.action_space.shape else ("int", np.int32)
    (folder / "policy.h").write_bytes(policy.export("c", {}))
    (folder / "policy.c").write_text(HEADER_LOOP.format(kind=kind))
    library = folder / "policy.so"
    command = ["cc", "-std=c99", "-O3", "-shared", "-fPIC", "-o", library, folder / "policy.c", "-lm"]
    subprocess.run(command, check=True)
    act = ctypes.CDLL(str(library)).act

    def play(obs: Any) -> Any:
        actions = np.zeros((len(obs), *policy.action_space.shape), number)
        act(obs.ctypes.data_as(ctypes.c_void_p), actions.ctypes.data_as(ctypes.c_void_p), len(obs))
        return actions

    return play


def measure(env_id: str, observations: int, rounds: int) -> list[str]:
    """A row of the table for each form."""
    policy = make_policy(env_id)
    shape = observations, *policy.observation_space.shape
    obs = (2 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    rates: dict[str, list[float]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        plays = forms(policy, Path(folder))
        for _ in range(rounds):
            for name, play in plays.items():
                start = time.perf_counter()
                play(obs)
                rates.setdefault(name, []).append(observations / (time.perf_counter() - start))
        wanted = plays["PyTorch module"](obs).astype(np.float64)
        for name, play in plays.items():
            difference = np.abs(play(obs) - wanted)
            same = "–" if policy.action_space.shape else f"{(difference == 0).mean():.2%}"
            rows.append(
                f"| {env_id} | {name} | {statistics.median(rates[name]):,.0f} | {difference.max():.1g} | {same} |"
            )
            print(rows[-1], flush=True)
    return rows


def main(observations: int = 10_000, rounds: int = 5) -> None:
    torch.set_num_threads(1)
    rows = [row for env_id in ENVIRONMENTS for row in measure(env_id, observations, rounds)]
    title = (
        f"{observations:,} observations one after another, median of {rounds} rounds, one thread; "
        "64 × 64 tanh network with a normaliser. The difference is that of the actions to those of the PyTorch module."
    )
    columns = ["| environment | form | steps/s | largest difference | same actions |", "|---|---|---|---|---|"]
    command = " ".join(["python benchmarks/studies/exported_policies.py", *sys.argv[1:]])
    RESULT.write_text("\n".join([title, "", *columns, *rows, "", f"`{command}`", ""]))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
