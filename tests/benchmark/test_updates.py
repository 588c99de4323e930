"""What the updates of a run did: against a computation by hand, and without a trace in the run."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlzoo.benchmark.job import Job, run_job
from rlzoo.benchmark.updates import Updates
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer

SMALL = {"num_envs": 4, "num_steps": 64, "total_steps": 1500}
SETTINGS = {
    "reinforce": {"num_envs": 4, "total_steps": 1500, "learning_rate": 0.02},
    "npg": SMALL | {"step_kl": 0.05},
    "trpo": SMALL | {"max_kl": 0.02},
    "ppo-penalty": SMALL | {"learning_rate": 0.01},
    "ppo-clip": SMALL | {"learning_rate": 0.01},
}
EACH = [name if name == "trpo" else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]


def by_hand(algorithm, settings):
    """Each update's KL, change of the surrogate and ratios, from the models before and after it."""
    trainer = Trainer(make_config(algorithm, "CartPole-v1", seed=3, fast=False, **settings))
    inner, updates = trainer.algorithm, []

    def update(model, state, buffer):
        before = copy.deepcopy(model)
        metrics = inner.update(model, state, buffer)
        estimated, steps = inner.estimator(buffer), buffer.mask.shape[1]
        mask = estimated.mask.numpy()
        with torch.no_grad():
            logits = [x.distribution(buffer.obs[:, :steps]).logits.double().numpy()[mask] for x in (before, model)]
        old, new = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logits)
        action, advantage = buffer.action.numpy()[mask], estimated.advantage.double().numpy()[mask]
        taken = np.arange(len(action))
        ratio = np.exp(new[taken, action] - old[taken, action])
        gain = ratio - 1, (advantage - advantage.mean()) / advantage.std()
        kl = (np.exp(old) * (old - new)).sum(-1).mean()
        updates.append((kl, np.mean(gain[0] * gain[1]), np.mean(abs(ratio - 1) > 0.2), ratio.max(), metrics))
        return metrics

    trainer.algorithm = SimpleNamespace(update=update, estimator=inner.estimator)
    returns = [[episode.return_ for episode in iteration.episodes] for iteration in trainer]
    trainer.task.close()
    return updates, returns


@pytest.mark.parametrize("algorithm", EACH)
def test_updates_are_those_computed_by_hand(algorithm):
    trainer = Trainer(make_config(algorithm, "CartPole-v1", seed=3, fast=False, **SETTINGS[algorithm]))
    measured = Updates(trainer)
    for iteration in trainer:
        measured.add(iteration)
    trainer.task.close()
    summary = measured.summary()

    updates, returns = by_hand(algorithm, SETTINGS[algorithm])
    kl, gain, outside, largest, metrics = zip(*updates, strict=True)
    means = [np.mean(x) for x in returns if x]
    episodes = [x for of_iteration in returns for x in of_iteration]
    expected = {
        "updates": len(updates),
        "kl_median": np.median(kl),
        "kl_p95": np.quantile(kl, 0.95),
        "kl_max": max(kl),
        "kl_above": np.mean(np.array(kl) > 0.01),
        "surrogate_fell": np.mean(np.array(gain) < 0),
        "ratio_outside": np.mean(outside),
        "ratio_p95": np.quantile(largest, 0.95),
        "last_100": np.mean(episodes[-100:]),
        "return_fell": np.mean(np.diff(means) < 0),
    }
    delta = SETTINGS[algorithm].get("max_kl", SETTINGS[algorithm].get("step_kl"))
    if delta is not None:
        expected["kl_above_bound"] = np.mean(np.array(kl) > delta * 1.001)
    if algorithm == "trpo":
        assert expected["kl_above_bound"] == 0
        expected["backtracks"] = np.mean([x["backtracks"] for x in metrics])
        expected["rejected"] = np.mean([1 - x["accepted"] for x in metrics])
    assert summary == pytest.approx(expected, rel=2e-3, abs=1e-6)
    assert len(updates) > 2
    assert summary["kl_max"] > 1e-4


@pytest.mark.parametrize("algorithm", EACH)
def test_measuring_does_not_change_the_run(algorithm):
    config = make_config(algorithm, "CartPole-v1", **SETTINGS[algorithm]).to_dict()
    settings = {name: x for name, x in config.items() if name not in ("env", "seed")}
    job = Job(algorithm, "CartPole-v1", 1, settings, 500, 3, 5)
    jobs = (dataclasses.replace(job, measure_updates=x) for x in (False, True))
    plain, measured = (dataclasses.asdict(run_job(x)) | {"seconds": []} for x in jobs)
    assert plain["updates"] == {}
    assert measured.pop("updates")["updates"] > 2
    assert measured | {"updates": {}} == plain


def test_shares_of_updates_and_the_last_hundred_episodes():
    algorithm = SimpleNamespace()
    measured = Updates(SimpleNamespace(algorithm=algorithm))
    kls, gains = (0.02, 0.005, 0.03, 0.001), (0.1, -0.1, 0.2, 0.0)
    for kl, gain, number in zip(kls, gains, (0, 60, 50, 1), strict=True):
        measured._rows.append({"kl": kl, "surrogate": gain, "outside": 0.5, "ratio": 2.0})
        episodes = [SimpleNamespace(return_=float(number))] * number
        measured.add(SimpleNamespace(metrics={"backtracks": 2, "accepted": kl > 0.004}, episodes=episodes))
    summary = measured.summary()
    assert summary["kl_above"] == 0.5
    assert summary["surrogate_fell"] == 0.25
    assert summary["rejected"] == 0.25
    assert summary["backtracks"] == 2
    # 60 episodes of 60, 50 of 50 and one of 1: the last hundred lack 11 of the first.
    assert summary["last_100"] == pytest.approx((49 * 60 + 50 * 50 + 1) / 100)
    assert summary["return_fell"] == 1
