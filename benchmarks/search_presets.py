"""How the presets were found: a TPE search that starts from the present preset, prunes, and can be resumed.

    pip install -e '.[search]'
    python benchmarks/search_presets.py trpo Acrobot-v1 --trials 30 --jobs 2
    python benchmarks/search_presets.py trpo Acrobot-v1 --trials 1 --try "max_kl=0.03 num_envs=8"
    python benchmarks/search_presets.py trpo Acrobot-v1 --show

The first trial is the present preset. A trial trains seeds 0, 1 and 2 one after the other for the budget of the suite
`classic`, whose own seeds are others. A run's score is 0.7 times the mean return over the last quarter of 20
evaluations, plus 0.3 times that over all of them; a trial's score is the mean over the seeds. From the second seed on,
a trial that lies below the median of the others is pruned. Studies are kept in `benchmarks/studies`, one journal a
pair, and continue from there. `--show` prints the best trial as TOML. `--try` adds a trial of your own. A study writes
a schedule as a number and a switch: `max_kl` and `anneal_kl` for "linear:MAX_KL:0".
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch

from rlzoo import Trainer, make_config
from rlzoo.control.evaluation import evaluate_model
from rlzoo.runs.presets import find_preset
from rlzoo.runs.upgrade import SCHEDULED, upgrade

STUDIES = Path(__file__).parent / "studies"
SEEDS = (0, 1, 2)
"""Results are reported for others: see suites/classic.yaml."""
EVALUATIONS = 20
BUDGET = {"MountainCar-v0": 200_000}

Choices = tuple[Any, ...]
Range = optuna.distributions.FloatDistribution


def log(low: float, high: float) -> Range:
    return Range(low, high, log=True)


SHARED: dict[str, Choices | Range] = {
    "gamma": (0.9, 0.95, 0.98, 0.99, 0.995),
    "num_envs": (4, 8, 16, 32),
    "noise_correlation": (0.0, 0.5, 0.7, 0.8, 0.9, 0.95),
}
GAE: dict[str, Choices | Range] = {"gae_lambda": Range(0.8, 1.0), "num_steps": (16, 32, 64, 128, 256, 512)}
CRITIC: dict[str, Choices | Range] = {
    "vf_learning_rate": log(3e-4, 1e-2),
    "vf_epochs": (5, 10, 20),
    "vf_minibatch_size": (64, 128, 256),
}
TRUST_REGION = {**SHARED, **GAE, **CRITIC, "max_kl": log(0.005, 0.1), "anneal_kl": (False, True)}
PPO = {
    **SHARED,
    **GAE,
    "learning_rate": log(2e-4, 5e-3),
    "anneal_lr": (False, True),
    "epochs": (4, 5, 8, 10, 20),
    "minibatch_size": (64, 128, 256),
}
SPACES: dict[str, dict[str, Choices | Range]] = {
    "reinforce": {**SHARED, **CRITIC, "learning_rate": log(1e-3, 3e-2), "anneal_lr": (False, True)},
    "npg": TRUST_REGION,
    "trpo": TRUST_REGION,
    "ppo-penalty": {**PPO, "target_kl": log(0.003, 0.05)},
    "ppo-clip": {**PPO, "clip_coef": (0.1, 0.2, 0.3), "anneal_clip": (False, True)},
}


def as_settings(algorithm: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """A trial's parameters as settings."""
    settings = upgrade({"algorithm": algorithm, **parameters})
    del settings["algorithm"]
    return settings


def as_parameters(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a trial's parameters: the inverse of `as_settings`."""
    parameters = dict(settings)
    for switch, names in SCHEDULED.items():
        for name in names:
            if str(parameters.get(name)).startswith("linear:"):
                parameters[name], parameters[switch] = float(parameters[name].split(":")[1]), True
    return parameters


def budget(env: str) -> int:
    return BUDGET.get(env, 100_000)


def score(algorithm: str, env: str, settings: dict[str, Any], seed: int) -> float:
    """Of one run; stochastic evaluations of 50 episodes."""
    trainer = Trainer(make_config(algorithm, env, **settings, seed=seed))
    interval = trainer.config.total_steps / EVALUATIONS
    returns: list[float] = []
    while not trainer.done:
        trainer.iterate()
        while trainer.step >= interval * (len(returns) + 1) and len(returns) < EVALUATIONS:
            returns.append(evaluate_model(trainer.model, env, 50, seed=len(returns)).mean_return)
    trainer.task.close()
    return float(0.7 * np.mean(returns[-EVALUATIONS // 4 :]) + 0.3 * np.mean(returns))


def objective(trial: optuna.Trial, algorithm: str, env: str) -> float:
    parameters: dict[str, Any] = {
        **as_parameters(find_preset(algorithm, env) or {}),
        **trial.user_attrs.get("settings", {}),
    }
    for name, choices in SPACES[algorithm].items():
        if isinstance(choices, tuple):
            parameters[name] = trial.suggest_categorical(name, choices)
        else:
            parameters[name] = trial.suggest_float(name, choices.low, choices.high, log=choices.log)
    settings = as_settings(algorithm, parameters)
    settings["total_steps"] = budget(env)
    if not 256 <= settings["num_envs"] * settings.get("num_steps", 1024) <= 4096:
        raise optuna.TrialPruned
    scores: list[float] = []
    for seed in SEEDS:
        scores.append(score(algorithm, env, settings, seed))
        trial.report(float(np.mean(scores)), len(scores))
        if trial.should_prune():
            raise optuna.TrialPruned
    print(f"{algorithm} {env} trial {trial.number}: {np.mean(scores):.1f}  {trial.params}", flush=True)
    return float(np.mean(scores))


def open_study(algorithm: str, env: str) -> optuna.Study:
    STUDIES.mkdir(exist_ok=True)
    file = optuna.storages.journal.JournalFileBackend(str(STUDIES / f"{algorithm}-{env}.log"))
    return optuna.create_study(
        study_name=f"{algorithm}/{env}",
        storage=optuna.storages.JournalStorage(file),
        sampler=optuna.samplers.TPESampler(multivariate=True, group=True, n_startup_trials=6),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2),
        direction="maximize",
        load_if_exists=True,
    )


def enqueue(study: optuna.Study, algorithm: str, env: str, variant: str) -> None:
    """A trial of the preset with some settings changed (`gamma=0.95 num_envs=4`, values as in TOML)."""
    settings = as_parameters(find_preset(algorithm, env) or {}) | tomllib.loads("\n".join(variant.split()))
    known = SPACES[algorithm]
    searched = {name: x for name, x in settings.items() if name in known}
    searched |= {"noise_correlation": settings.get("noise_correlation", 0.0)}
    for name in ("anneal_lr", "anneal_kl", "anneal_clip"):
        if name in known:
            searched[name] = settings.get(name, False)
    fixed = {name: x for name, x in settings.items() if name not in known}
    study.enqueue_trial(searched, user_attrs={"settings": fixed})


def work(algorithm: str, env: str, trials: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    open_study(algorithm, env).optimize(lambda trial: objective(trial, algorithm, env), n_trials=trials)


def show(study: optuna.Study, env: str) -> None:
    done = sorted(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]), key=lambda trial: -(trial.value or 0))
    for trial in done[:5]:
        print(f"# {study.study_name}, trial {trial.number} of {len(study.trials)}: {trial.value:.1f}")
    best = done[0]
    algorithm = study.study_name.split("/")[0]
    parameters = as_parameters(find_preset(algorithm, env) or {}) | best.user_attrs.get("settings", {}) | best.params
    settings = as_settings(algorithm, {name: _rounded(x) for name, x in parameters.items()})
    settings["total_steps"] = budget(env)
    print(f"[{env}]")
    for name, x in settings.items():
        text = str(x).lower() if isinstance(x, bool) else f'"{x}"' if isinstance(x, str) else x
        print(f"{name} = {text}")


def _rounded(x: Any) -> Any:
    return float(f"{x:.3g}") if isinstance(x, float) else x


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=SPACES)
    parser.add_argument("env")
    parser.add_argument("--trials", type=int, default=30, metavar="N", help="a process's [30]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time [1]")
    parser.add_argument("--try", dest="variants", action="append", default=[], metavar="SETTINGS", help="add a trial")
    parser.add_argument("--show", action="store_true", help="print the best trials, and search no further")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study(options.algorithm, options.env)
    if options.show:
        show(study, options.env)
        return 0
    for variant in [""] * (not study.trials) + options.variants:
        enqueue(study, options.algorithm, options.env, variant)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # for the workers, before they import NumPy
    context = multiprocessing.get_context("spawn")
    arguments = (options.algorithm, options.env, options.trials)
    workers = [context.Process(target=work, args=arguments) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    show(study, options.env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
