"""How rlzoo/presets were found: variants of a preset side by side, by hand or by TPE.

    python benchmarks/search_presets.py compare trpo Pendulum-v1 "" "gamma=0.95 num_envs=4" "anneal_kl=true"
    pip install -e '.[search]'
    python benchmarks/search_presets.py search trpo Pendulum-v1 --trials 30

`compare` trains every variant (settings on top of the present preset; "" is the preset itself) on seeds 0 to 3 and
prints ten evaluations of each run. The presets started from rl-baselines3-zoo's public values and were improved in
this way. `search` does the same without a hand: a trial trains the seeds one after the other, its score is the mean
return over the last four of the ten evaluations, less half the standard deviation over seeds, and a trial that falls
behind the median of the others is pruned. The study is kept in `--study`, a journal file, and goes on from there; the
best settings are printed as TOML.
"""

from __future__ import annotations

import argparse
import tomllib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlzoo import Trainer, make_config
from rlzoo.evaluate import evaluate_model
from rlzoo.presets import find_preset

if TYPE_CHECKING:
    import optuna

SEEDS = (0, 1, 2, 3)
"""Results are reported for others: see curves.py."""
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


def train(algorithm: str, env: str, settings: dict[str, Any], seed: int) -> list[float]:
    """Mean returns of ten stochastic evaluations of 64 episodes, spread over the run."""
    torch.set_num_threads(1)
    trainer = Trainer(make_config(algorithm, env, **settings, seed=seed))
    interval = trainer.config.total_steps / 10
    returns: list[float] = []
    while not trainer.done:
        trainer.iterate()
        if trainer.step >= interval * (len(returns) + 1):
            returns.append(evaluate_model(trainer.model, env, 64, seed=len(returns)).mean_return)
    return returns


def compare(algorithm: str, env: str, variants: list[str], seeds: int, jobs: int) -> None:
    preset = find_preset(algorithm, env) or {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = {
            variant: [pool.submit(train, algorithm, env, preset | parse(variant), seed) for seed in range(seeds)]
            for variant in variants
        }
        for variant, trained in runs.items():
            print(f"{algorithm} {env} {variant or '(the preset)'}")
            for seed, run in enumerate(trained):
                print(f"  seed {seed}  " + "".join(f"{x:9.1f}" for x in run.result()), flush=True)


def parse(variant: str) -> dict[str, Any]:
    """`gamma=0.95 num_envs=4`, with values as in a preset's TOML."""
    return tomllib.loads("\n".join(variant.split()))


def score(runs: list[list[float]]) -> float:
    ends = [np.mean(returns[-4:]) for returns in runs]
    return float(np.mean(ends) - 0.5 * np.std(ends))


def objective(trial: optuna.Trial, algorithm: str, env: str) -> float:
    import optuna

    choices = SPACES[algorithm]
    settings = {name: trial.suggest_categorical(name, values) for name, values in choices.items()}
    settings = (find_preset(algorithm, env) or {}) | settings
    if not 256 <= settings["num_envs"] * settings.get("num_steps", 1024) <= 4096:
        raise optuna.TrialPruned
    runs: list[list[float]] = []
    for seed in SEEDS:
        runs.append(train(algorithm, env, settings, seed))
        trial.report(score(runs), len(runs))
        if trial.should_prune():
            raise optuna.TrialPruned
    print(f"{score(runs):10.1f}  {trial.params}", flush=True)
    return score(runs)


def search(algorithm: str, env: str, trials: int, path: Path) -> None:
    import optuna

    study = optuna.create_study(
        study_name=f"{algorithm}/{env}",
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path))),
        sampler=optuna.samplers.TPESampler(multivariate=True, n_startup_trials=8),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
        direction="maximize",
        load_if_exists=True,
    )
    study.optimize(lambda trial: objective(trial, algorithm, env), n_trials=trials)
    print(f"\n# {study.best_value:.1f}\n[{env}]")
    for name, value in study.best_params.items():
        print(f"{name} = {str(value).lower() if isinstance(value, bool) else value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    comparing, searching = commands.add_parser("compare"), commands.add_parser("search")
    for command in (comparing, searching):
        command.add_argument("algorithm", choices=SPACES)
        command.add_argument("env")
    comparing.add_argument("variants", nargs="+", metavar="SETTINGS")
    comparing.add_argument("--seeds", type=int, default=len(SEEDS))
    comparing.add_argument("--jobs", type=int, default=2)
    searching.add_argument("--trials", type=int, default=30)
    searching.add_argument("--study", type=Path, default=Path("presets-study.log"))
    options = parser.parse_args()
    if options.command == "compare":
        compare(options.algorithm, options.env, options.variants, options.seeds, options.jobs)
    else:
        search(options.algorithm, options.env, options.trials, options.study)


if __name__ == "__main__":
    main()
