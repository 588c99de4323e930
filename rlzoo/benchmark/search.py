"""Search of settings with Optuna: trials that start from the preset, are pruned, and continue where they stopped.

study.log     the trials, as a journal of Optuna
preset.toml   the best settings, for `rlzoo train --preset`
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError

from rlzoo.benchmark.runner import parallel
from rlzoo.benchmark.spaces import Space, as_parameters, as_settings, feasible, space_for
from rlzoo.benchmark.statistics import Interval, iqm_interval
from rlzoo.core.errors import ConfigError, NonFiniteError, RunError, TrainingError, described, require
from rlzoo.runs.configuration.config import assemble, make_config
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.files import lock, write_atomically
from rlzoo.runs.loop import Trainer
from rlzoo.runs.registry import ALGORITHMS, ALIASES
from rlzoo.runs.signals import interruptible

EVALUATIONS = 20
"""Evaluations of a run."""
_EPISODES = 50
_STUDY, _PRESET = "study.log", "preset.toml"
_STARTUP = 6
"""Trials before the first one that the sampler chooses."""


class Trial(NamedTuple):
    """A trial for a worker process."""

    study: Path
    number: int
    algorithm: str
    env: str
    settings: dict[str, Any]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    preset: Path
    best: int
    """Number of the best trial."""
    start: int
    """Number of the trial of the settings where the search started."""
    trials: int
    """Trials that were completed or pruned."""
    score: float
    start_score: float
    validation: dict[int, Interval]
    """Interquartile means of the scores on the validation seeds, of the best trial and of the start."""


def search(
    algorithm: str,
    env: str,
    out: Path | str,
    *,
    trials: int = 30,
    seeds: Sequence[int] = (0, 1, 2),
    validation_seeds: Sequence[int] = (10, 11, 12, 13, 14),
    fixed: Mapping[str, Any] | None = None,
    variant: Mapping[str, Any] | None = None,
    jobs: int = 1,
    command: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Found:
    """Searches settings of a pair until its study has a number of trials, and writes the best ones as a preset.

    The first trial is the present preset. Each trial trains all seeds, one after the other. The score of a run is 0.7
    times the mean return over the last quarter of 20 evaluations, plus 0.3 times that over all of them. From the middle
    of its first run on, a trial that lies below the median of the others is pruned. The best trial and the first are
    then validated on other seeds.

    Args:
        out: folder of the study. A study that it holds is continued; trials that were running are run again.
        fixed: settings that are not searched.
        variant: settings of one more trial, which are otherwise those of the first.
        jobs: processes, with one thread each.
        command: the command, for the preset file.

    Raises:
        ConfigError: Optuna is missing, or a setting cannot work.
        RunError: the folder holds a search of something else.
        TrainingError: a trial failed.
        Interrupted: a signal was received.
    """
    algorithm = ALIASES.get(algorithm, algorithm)
    require(trials >= 1, f"trials must be at least 1, got {trials}")
    require(bool(seeds) and not {*seeds} & {*validation_seeds}, "seeds and validation seeds must differ")
    optuna, fixed, out = _optuna(), dict(fixed or {}), Path(out)
    base = starting_from(algorithm, env, fixed, True)[0]
    values = {name: x.value for name, x in assemble(algorithm, env, base).table.items()}
    make_config(algorithm, env, **{**base, **(variant or {})})
    space = space_for(algorithm, values, fixed)
    require(bool(space), f"there is nothing to search for {algorithm} on {env}")
    file = (out / _STUDY).absolute()  # worker processes may have another working directory
    with lock(out):
        study = _open(file, f"{algorithm}/{env}")
        _check_same(study, out, {"base": json.loads(json.dumps(base)), "seeds": list(seeds)})
        _enqueue(study, space, values, variant)

        def ask() -> Iterator[Trial]:
            while _count(study) + len(_in(study, "RUNNING")) < trials:
                study.sampler = _sampler(len(study.trials))
                trial = study.ask()
                settings = base | trial.user_attrs.get("settings", {})
                settings |= as_settings(algorithm, {name: _suggest(trial, name, x) for name, x in space.items()})
                try:
                    make_config(algorithm, env, **settings)
                    possible = feasible(settings) or "start" in trial.user_attrs
                except ConfigError:
                    possible = False
                if not possible:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    continue
                trial.set_user_attr("settings", settings)
                yield Trial(file, trial.number, algorithm, env, settings, tuple(seeds))

        def stopped() -> str:
            return f"stopped with {_count(study)} of {trials} trials done; the same command continues"

        try:
            with interruptible(stopped):
                for line in parallel(run_trial, ask(), jobs):
                    say(f"{line}  ({_count(study)} of {trials})")
                best, start = _best(study), _start(study)
                validation = _validate(study, best, start, algorithm, env, validation_seeds, jobs, say)
        except TerminatedWorkerError as error:
            raise TrainingError("the process of a trial was killed; memory may have run out") from error
        found = Found(out / _PRESET, best.number, start.number, _count(study), best.value, start.value, validation)
        settings = {name: _rounded(x) for name, x in best.user_attrs["settings"].items()}
        write_atomically(found.preset, _preset(algorithm, env, settings, found, seeds, validation_seeds, command))
    return found


def run_trial(trial: Trial) -> str:
    """Runs a trial in a worker process, and tells the study its score. Returns a line that says what came out.

    Raises:
        TrainingError: an unexpected error.
    """
    torch.set_num_threads(1)
    optuna = _optuna()
    study = _open(trial.study, f"{trial.algorithm}/{trial.env}")
    mine = optuna.trial.Trial(study, study.trials[trial.number]._trial_id)
    returns: list[list[float]] = []
    try:
        for seed in trial.seeds:
            returns.append([])
            for mean_return in curve(trial.algorithm, trial.env, trial.settings, seed):
                returns[-1].append(mean_return)
                mine.report(float(np.mean(np.concatenate(returns))), sum(map(len, returns)))
                if mine.should_prune():
                    study.tell(mine, state=optuna.trial.TrialState.PRUNED)
                    return f"trial {trial.number}: pruned in run {len(returns)} of {len(trial.seeds)}"
        score = float(np.mean([score_of(x) for x in returns]))
        study.tell(mine, score)
        return f"trial {trial.number}: {score:.4g}"
    except NonFiniteError as error:
        study.tell(mine, state=optuna.trial.TrialState.PRUNED)
        return f"trial {trial.number}: {error}"
    except Exception as error:
        study.tell(mine, state=optuna.trial.TrialState.FAIL)
        raise TrainingError(f"failed: trial {trial.number}: {described(error)}") from error


def curve(algorithm: str, env: str, settings: Mapping[str, Any], seed: int) -> Iterator[float]:
    """Mean returns of the stochastic evaluations of a run, as it trains."""
    trainer = Trainer(make_config(algorithm, env, **{**settings, "seed": seed}))
    try:
        interval, made = trainer.config.total_steps / EVALUATIONS, 0
        while not trainer.done:
            trainer.iterate()
            while trainer.step >= interval * (made + 1) and made < EVALUATIONS:
                yield trainer.task.evaluate(_EPISODES, seed=made).mean_return
                made += 1
    finally:
        trainer.task.close()


def score_of(returns: Sequence[float]) -> float:
    """0.7 times the mean over the last quarter, plus 0.3 times that over all."""
    return float(0.7 * np.mean(returns[-max(1, len(returns) // 4) :]) + 0.3 * np.mean(returns))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("rlzoo search needs Optuna: pip install 'rlzoo[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _open(file: Path, name: str) -> Any:
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            study_name=name,
            storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file))),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=EVALUATIONS // 2),
            direction="maximize",
            load_if_exists=True,
        )


def _sampler(seed: int) -> Any:
    """A sampler whose choice depends on earlier trials and on the number of the trial alone."""
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(multivariate=True, group=True, n_startup_trials=_STARTUP, seed=seed)


def _suggest(trial: Any, name: str, space: Space) -> Any:
    if isinstance(space, tuple):
        return trial.suggest_categorical(name, space)
    return trial.suggest_float(name, space.low, space.high, log=space.log)


def _check_same(study: Any, out: Path, wanted: Mapping[str, Any]) -> None:
    """Notes what a new study searches; raises `RunError` if an older one searches something else."""
    for name, value in wanted.items():
        before = study.user_attrs.get(name, value)
        if before != value:
            raise RunError(f"{out} holds a search with other {name} ({before}, not {value}): give another --out")
        study.set_user_attr(name, value)


def _enqueue(
    study: Any, space: Mapping[str, Space], values: Mapping[str, Any], variant: Mapping[str, Any] | None
) -> None:
    """Queues the first trial of a new study, the trials that were running when it stopped, and the user's variant."""
    optuna = _optuna()
    start = {name: x for name, x in as_parameters(values).items() if name in space}
    start |= {name: False for name in space if name not in start}
    if not study.trials:
        study.enqueue_trial(start, user_attrs={"start": True})
    for trial in _in(study, "RUNNING"):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params or start, user_attrs=trial.user_attrs)
    if variant:
        searched = {name: x for name, x in as_parameters({**values, **variant}).items() if name in space}
        rest = {name: x for name, x in variant.items() if name not in searched}
        study.enqueue_trial(start | searched, user_attrs={"settings": rest}, skip_if_exists=True)


def _in(study: Any, *states: str) -> list[Any]:
    return [trial for trial in study.trials if trial.state.name in states]


def _count(study: Any) -> int:
    return len(_in(study, "COMPLETE", "PRUNED"))


def _best(study: Any) -> Any:
    complete = _in(study, "COMPLETE")
    if not complete:
        raise TrainingError("no trial was completed")
    return max(complete, key=lambda trial: (trial.value, -trial.number))


def _start(study: Any) -> Any:
    started = [trial for trial in _in(study, "COMPLETE") if "start" in trial.user_attrs]
    if not started:
        raise TrainingError(
            "the trial of the settings where the search starts was not completed: try others with --set"
        )
    return started[0]


def _validate(
    study: Any,
    best: Any,
    start: Any,
    algorithm: str,
    env: str,
    seeds: Sequence[int],
    jobs: int,
    say: Callable[[str], None],
) -> dict[int, Interval]:
    """Scores of the best trial and of the start on other seeds. Those of an earlier session are kept."""
    scores: dict[str, float] = dict(study.user_attrs.get("validation", {}))
    trials = {trial.number: trial.user_attrs["settings"] for trial in (best, start)} if seeds else {}
    wanted = [(f"{n}:{seed}", algorithm, env, settings, seed) for n, settings in trials.items() for seed in seeds]
    todo = [job for job in wanted if job[0] not in scores]
    if todo:
        say(f"validating trials {', '.join(sorted(map(str, trials)))} on other seeds")
    for key, score in parallel(_validation_run, todo, jobs):
        scores[key] = score
        study.set_user_attr("validation", scores)
    return {n: iqm_interval([[scores[f"{n}:{seed}"] for seed in seeds]]) for n in trials}


def _validation_run(job: tuple[str, str, str, dict[str, Any], int]) -> tuple[str, float]:
    torch.set_num_threads(1)
    key, algorithm, env, settings, seed = job
    return key, score_of(list(curve(algorithm, env, settings, seed)))


def _preset(
    algorithm: str,
    env: str,
    settings: Mapping[str, Any],
    found: Found,
    seeds: Sequence[int],
    validation_seeds: Sequence[int],
    command: str,
) -> bytes:
    """The preset file, which says where its values are from."""
    lines = [
        f"# {command}",
        f"# Study {found.preset.with_name(_STUDY)}, trial {found.best} of {found.trials}: score {found.score:.5g} on "
        f"seeds {', '.join(map(str, seeds))}; trial {found.start}, where it started: {found.start_score:.5g}",
    ]
    if found.validation:
        shown = "; ".join(f"trial {n}: {describe(x)}" for n, x in found.validation.items())
        lines.append(f"# On seeds {', '.join(map(str, validation_seeds))}, which the search has not seen, {shown}")
    named = [f'algorithm = "{algorithm}"'] if algorithm in ALGORITHMS else []
    table = [f"{name} = {_toml(x)}" for name, x in settings.items()]
    return "\n".join([*lines, *named, "", f"[{json.dumps(env)}]", *table, ""]).encode()


def describe(interval: Interval) -> str:
    """An interquartile mean with its 95 % interval."""
    return f"{interval.estimate:.5g} [{interval.low:.5g}, {interval.high:.5g}]"


def _toml(x: Any) -> str:
    """A value as TOML, which writes numbers, texts and lists as JSON does. It has no None: a setting takes "none"."""
    if isinstance(x, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(value)}" for key, value in x.items()) + "}"
    return json.dumps("none" if x is None else x)


def _rounded(x: Any) -> Any:
    return float(f"{x:.3g}") if isinstance(x, float) else x
