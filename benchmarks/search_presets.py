"""The search behind rlzoo/presets: random and TPE trials around the present preset of a pair.

    pip install -e '.[search]'
    python benchmarks/search_presets.py trpo Pendulum-v1 --trials 30 --jobs 2

A trial trains three seeds, one after the other. Its score is the mean return of the stochastic evaluations in the
last third of the budget, averaged over seeds, less half their standard deviation over seeds; a trial whose first
seeds already fall behind the median of the others is pruned. The study is kept in `--study` (a journal file) and
goes on from there. The best settings are printed as TOML, to be read, shortened and put into the preset.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from rlzoo import Trainer, make_config
from rlzoo.evaluate import evaluate_model
from rlzoo.presets import find_preset

SEEDS = (101, 102, 103)
"""Seeds of the search; those that results are reported for are others."""
SHARED = {
    "gamma": (0.9, 0.95, 0.98, 0.99, 0.995),
    "num_envs": (4, 8, 16),
    "normalize_obs": (False, True),
    "normalize_reward": (False, True),
    "noise_correlation": (0.0, 0.5, 0.8, 0.9, 0.95),
}
GAE = {"gae_lambda": (0.8, 0.9, 0.95, 0.98, 1.0), "num_steps": (32, 64, 128, 256, 512)}
CRITIC = {"vf_learning_rate": (3e-4, 1e-3, 3e-3), "vf_epochs": (5, 10, 20), "vf_minibatch_size": (64, 128, 256)}
TRUST_REGION = {**SHARED, **GAE, **CRITIC, "max_kl": (0.005, 0.01, 0.02, 0.04), "anneal_kl": (False, True)}
PPO = {
    **SHARED,
    **GAE,
    "learning_rate": (3e-4, 1e-3, 2e-3, 3e-3),
    "anneal_lr": (False, True),
    "epochs": (4, 8, 10, 20),
    "minibatch_size": (64, 128, 256),
}
SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "reinforce": {**SHARED, **CRITIC, "learning_rate": (1e-3, 3e-3, 5e-3, 1e-2), "anneal_lr": (False, True)},
    "npg": TRUST_REGION,
    "trpo": TRUST_REGION,
    "ppo-penalty": {**PPO, "target_kl": (0.005, 0.01, 0.02, 0.04)},
    "ppo-clip": {**PPO, "clip_coef": (0.1, 0.2, 0.3), "anneal_clip": (False, True)},
}


def train(algorithm: str, env: str, settings: dict[str, Any], seed: int) -> float:
    """Mean return over the last third of ten stochastic evaluations."""
    torch.set_num_threads(1)
    trainer = Trainer(make_config(algorithm, env, **settings, seed=seed))
    interval = trainer.config.total_steps / 10
    returns: list[float] = []
    while not trainer.done:
        trainer.iterate()
        if trainer.step >= interval * (len(returns) + 1):
            returns.append(evaluate_model(trainer.model, env, 64, seed=len(returns)).mean_return)
    return float(np.mean(returns[-4:]))


def score(returns: list[float]) -> float:
    return float(np.mean(returns) - 0.5 * np.std(returns))


def search(algorithm: str, env: str, trials: int, study: Path) -> None:
    """One worker's share of the trials of a study that others may work on too."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(study)))
    start = find_preset(algorithm, env) or {}
    space = SPACES[algorithm]
    work = optuna.load_study(
        study_name=f"{algorithm}/{env}",
        storage=storage,
        sampler=optuna.samplers.TPESampler(multivariate=True, n_startup_trials=8),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )

    def objective(trial: optuna.Trial) -> float:
        settings = start | {name: trial.suggest_categorical(name, choices) for name, choices in space.items()}
        steps = settings["num_envs"] * settings.get("num_steps", 1024)
        if not 256 <= steps <= 4096:
            raise optuna.TrialPruned
        returns: list[float] = []
        for seed in SEEDS:
            returns.append(train(algorithm, env, settings, seed))
            trial.report(score(returns), len(returns))
            if trial.should_prune():
                raise optuna.TrialPruned
        print(f"{score(returns):10.1f}  {trial.params}", flush=True)
        return score(returns)

    work.optimize(objective, n_trials=trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=SPACES)
    parser.add_argument("env")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--study", type=Path, default=Path("presets-study.log"))
    options = parser.parse_args()
    storage = JournalStorage(JournalFileBackend(str(options.study)))
    study = optuna.create_study(
        study_name=f"{options.algorithm}/{options.env}", storage=storage, direction="maximize", load_if_exists=True
    )
    space, present = SPACES[options.algorithm], find_preset(options.algorithm, options.env) or {}
    if not study.trials and all(present.get(name, choices[0]) in choices for name, choices in space.items()):
        study.enqueue_trial({name: present.get(name, choices[0]) for name, choices in space.items()})
    share = -(-options.trials // options.jobs)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(search, options.algorithm, options.env, share, options.study) for _ in range(options.jobs)]
        for job in jobs:
            job.result()
    print(f"\n# {study.best_value:.1f}\n[{options.env}]")
    for name, value in study.best_params.items():
        print(f"{name} = {str(value).lower() if isinstance(value, bool) else value}")


if __name__ == "__main__":
    main()
