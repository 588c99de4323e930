"""Search of settings with Optuna: trials that start from the preset, are pruned, and continue where they stopped.

study.log     the trials, as a journal of Optuna
preset.toml   the best settings, for `rlzoo train --preset`
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlzoo.benchmark.reports.statistics import Interval, iqm_interval
from rlzoo.benchmark.runner import KILLED, each
from rlzoo.benchmark.spaces import Space, as_parameters, as_settings, check_buffer, holds, space_for
from rlzoo.core.system.errors import ConfigError, NonFiniteError, RunError, TrainingError, describe_error, require
from rlzoo.core.system.files import naming
from rlzoo.core.system.functions import optional_module
from rlzoo.core.system.screen import one_line
from rlzoo.runs.configuration.config import assemble, make_config, merge
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.files import lock, write_atomically
from rlzoo.runs.registry import ALGORITHMS, ALIASES
from rlzoo.runs.signals import interruptible
from rlzoo.runs.train import new_trainer

EVALUATIONS = 20
"""Evaluations of a run."""
_EPISODES = 50
_STUDY, _PRESET = "study.log", "preset.toml"
_STARTUP = 6
"""Trials before the first one that the sampler chooses."""


@dataclass(frozen=True)
class Result:
    """The outcome of a search."""

    preset: Path
    best: int
    """Number of the best trial."""
    start: int
    """Number of the trial of the settings where the search started."""
    trials: int
    """Trials that were completed or pruned. Trials of settings that cannot work have numbers too."""
    score: float
    start_score: float
    validation: dict[int, Interval]
    """Interquartile means of the scores on the validation seeds, of the best trial and of the start."""

    @property
    def lines(self) -> list[str]:
        """What came out, in words."""
        start = f"trial {self.start}, where it started: {self.start_score:.5g}"
        lines = [f"best of {self.trials} trials: trial {self.best} with {self.score:.5g}; {start}"]
        for n, x in self.validation.items():
            bounds = f" [{x.low:.5g}, {x.high:.5g}]" if x.low < x.high else ""  # one seed has none
            lines.append(f"on other seeds, trial {n}: {x.estimate:.5g}{bounds}")
        return lines


@dataclass(frozen=True)
class _Problem:
    """What is searched, for worker processes."""

    file: Path
    """The journal of the study."""
    algorithm: str
    env: str
    base: dict[str, Any]
    """Settings where the search starts."""
    space: dict[str, Space]
    seeds: tuple[int, ...]

    def study(self, sampler_seed: int = 0) -> Any:
        """The study in the file, which is created if there is none. Raises `RunError` if it is of another pair."""
        optuna, pair = _optuna(), f"{self.algorithm}/{self.env}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = optuna.storages.JournalStorage(_journal(self.file))
            for other in {*optuna.get_all_study_names(storage)} - {pair}:
                raise RunError(f"{self.file.parent} holds a search of {other}: give another --out")
            return optuna.create_study(
                study_name=pair,
                storage=storage,
                sampler=optuna.samplers.TPESampler(
                    multivariate=True, group=True, n_startup_trials=_STARTUP, seed=sampler_seed
                ),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=EVALUATIONS // 2),
                direction="maximize",
                load_if_exists=True,
            )

    def score(self, trial: Any) -> float | None:
        """The score of a trial; None if it is pruned, for the reason in its attribute `pruned`.

        Raises:
            ConfigError: the settings cannot work.
            TrainingError: an unexpected error.
        """
        settings = self.settings(trial)
        returns: list[list[float]] = []
        try:
            for seed in self.seeds:
                returns.append([])
                for mean_return in curve(self.algorithm, self.env, settings, seed):
                    returns[-1].append(mean_return)
                    trial.report(float(np.mean(np.concatenate(returns))), sum(map(len, returns)))
                    if "start" not in trial.user_attrs and trial.should_prune():
                        trial.set_user_attr("pruned", f"pruned in run {len(returns)} of {len(self.seeds)}")
                        return None
        except NonFiniteError as error:
            trial.set_user_attr("pruned", str(error))
            return None
        except (Exception, SystemExit) as error:
            raise TrainingError(f"failed: trial {trial.number}: {describe_error(error)}") from error
        score = float(np.mean([score_of(x) for x in returns]))
        if np.isnan(score):
            trial.set_user_attr("pruned", "its returns are NaN")
            return None
        return score

    def settings(self, trial: Any) -> dict[str, Any]:
        """All settings of a trial, which are noted in the study. Those of the start and of a variant are as given."""
        parameters = {name: _suggest(trial, name, space) for name, space in self.space.items()}
        settings, _ = merge(self.algorithm, self.env, trial.user_attrs.get("variant", {}), {"the start": self.base})
        if not {"start", "variant"} & trial.user_attrs.keys():
            settings |= as_settings(self.algorithm, parameters)
            check_buffer(settings, self.space)
        make_config(self.algorithm, self.env, **settings)
        trial.set_user_attr("settings", settings)
        return settings


def search(
    algorithm: str,
    env: str,
    out: Path | str,
    *,
    trials: int = 30,
    seeds: Sequence[int] = (0, 1, 2),
    validation_seeds: Sequence[int] = (100, 101, 102, 103, 104),
    fixed: Mapping[str, Any] | None = None,
    variant: Mapping[str, Any] | None = None,
    jobs: int = 1,
    command: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Searches settings of a pair until its study has a number of trials, and writes the best ones as a preset.

    The first trial is the present preset. Each trial trains all seeds, one after the other, and the mean of their
    scores (`score_of`) counts. From the middle of its first run on, a trial that lies below the median of the others is
    pruned, but never the first. The best trial and the first are then validated on other seeds.

    Args:
        out: folder of the study. A study that it holds is continued; trials that were running are run again.
        fixed: settings that are not searched.
        variant: settings of one more trial, which are otherwise those of the first, as far as its estimator and network
            have them. It runs also if the study has all its trials.
        jobs: processes, with one thread each.
        command: the command, for the preset file.

    Raises:
        ConfigError: Optuna is missing, or a setting cannot work.
        RunError: the folder holds a search of something else.
        TrainingError: a trial failed.
        Interrupted: a signal was received.
    """
    require(trials >= 1, f"trials must be at least 1, got {trials}")
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    require(bool(seeds), "a search needs at least one seed")
    require(not {*seeds} & {*validation_seeds}, "seeds and validation seeds must differ")
    out, variant = Path(out), json.loads(json.dumps(dict(variant or {})))
    problem, values = _problem(ALIASES.get(algorithm, algorithm), env, out, seeds, dict(fixed or {}), variant)
    with lock(out):
        _cut_half_line(problem.file)
        study = problem.study()
        base = json.loads(json.dumps(problem.base))
        _check_same(study, out, base=base, seeds=list(seeds), fixed=sorted(fixed or {}))
        _enqueue(study, problem.space, values, variant)
        trials = max(trials, _count(study) + len(_in(study, "WAITING")))

        def stopped() -> str:
            return f"stopped with {_count(study)} of {trials} trials done; the same command continues"

        with interruptible(stopped):
            _run_trials(study, problem, trials, jobs, say)
            best, start = _best_and_start(study)
            validation = _validate(study, best, start, problem, validation_seeds, jobs, say)
        preset = out / _PRESET
        result = Result(preset, best.number, start.number, _count(study), best.value, start.value, validation)
        source = f"study {out / _STUDY}, seeds {[*seeds]}, validation seeds {[*validation_seeds]}"
        write_atomically(preset, _preset(problem, best.user_attrs["settings"], [command, source, *result.lines]))
    return result


def _problem(
    algorithm: str, env: str, out: Path, seeds: Sequence[int], fixed: Mapping[str, Any], variant: Mapping[str, Any]
) -> tuple[_Problem, dict[str, Any]]:
    """What is searched, and every setting of the pair, with its present value."""
    _optuna()
    require("seed" not in {**fixed, **variant}, "seed cannot be set or tried: a search has seeds")
    require("total_steps" not in variant, "total_steps cannot be tried: all trials have the same")
    base = starting_from(algorithm, env, fixed)[0]
    values = {name: x.value for name, x in assemble(algorithm, env, base).table.items()}
    make_config(algorithm, env, **merge(algorithm, env, variant, {"the start": base})[0])
    space = space_for(algorithm, values, fixed)
    require(bool(space), f"there is nothing to search for {algorithm} on {env}")
    file = (out / _STUDY).absolute()  # worker processes may have another working directory
    return _Problem(file, algorithm, env, base, space, tuple(seeds)), values


def _run_trials(study: Any, problem: _Problem, trials: int, jobs: int, say: Callable[[str], None]) -> None:
    """Runs trials until the study has as many as are asked for."""
    runs = {n: (problem, n) for n in range(_count(study), trials)}
    with contextlib.closing(each(_run_trial, runs, jobs)) as lines:
        for _, line in lines:
            if line is None:
                raise TrainingError(f"a trial ended: {KILLED}")
            say(f"{line}  ({_count(study)} of {trials})")


def _run_trial(work: tuple[_Problem, int]) -> str:
    """Runs the next trial of a study in a worker process, and returns a line with its outcome.

    Settings that cannot work are a failed trial, and the sampler chooses others.
    """
    problem, number = work
    torch.set_num_threads(1)
    study, states = problem.study(number), _optuna().trial.TrialState
    while True:
        trial = study.ask()
        try:
            score = problem.score(trial)
        except (ConfigError, TrainingError) as error:
            study.tell(trial, state=states.FAIL)
            if isinstance(error, TrainingError):
                raise
            continue
        study.tell(trial, score, states.PRUNED if score is None else None)
        return f"trial {trial.number}: {trial.user_attrs['pruned'] if score is None else f'{score:.4g}'}"


def curve(algorithm: str, env: str, settings: Mapping[str, Any], seed: int) -> Iterator[float]:
    """Mean returns of the stochastic evaluations of a run, as it trains."""
    trainer = new_trainer(make_config(algorithm, env, **{**settings, "seed": seed}))
    with contextlib.closing(trainer.task) as task:
        interval, number = trainer.config.total_steps / EVALUATIONS, 0
        while not trainer.done:
            trainer.iterate()
            while trainer.step >= interval * (number + 1) and number < EVALUATIONS:
                yield task.evaluate(_EPISODES, seed=number).mean_return
                number += 1


def score_of(returns: Sequence[float]) -> float:
    """0.7 times the mean over the last quarter, plus 0.3 times that over all."""
    return float(0.7 * np.mean(returns[-max(1, len(returns) // 4) :]) + 0.3 * np.mean(returns))


def _optuna() -> Any:
    optuna = optional_module("optuna", "rlzoo search needs Optuna: pip install 'rlzoo[search]'")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _journal(file: Path) -> Any:
    """The journal of a study. An entry that cannot be written leaves no part behind, and the error names the file."""
    backend = _optuna().storages.journal.JournalFileBackend

    class Journal(backend):  # type: ignore[misc,valid-type]
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            before = file.stat().st_size
            try:
                with naming(file):
                    super().append_logs(logs)
            except OSError:
                os.truncate(file, before)
                raise

    return Journal(str(file))


def _cut_half_line(file: Path) -> None:
    """Cuts off what follows the last whole line of a journal, which a power failure may leave."""
    content = file.read_bytes() if file.exists() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(file, content.rfind(b"\n") + 1)


def _suggest(trial: Any, name: str, space: Space) -> Any:
    if isinstance(space, tuple):
        return trial.suggest_categorical(name, space)
    return float(f"{trial.suggest_float(name, space.low, space.high, log=space.log):.3g}")


def _check_same(study: Any, out: Path, **search: Any) -> None:
    """Notes what a new study searches; raises `RunError` if an older one searches something else."""
    for name, value in search.items():
        before = study.user_attrs.get(name, value)
        if before != value:
            if isinstance(value, dict):  # all settings: the first that differs
                name = next(x for x in {**before, **value} if before.get(x, "none") != value.get(x, "none"))
                before, value = before.get(name, "none"), value.get(name, "none")
            raise RunError(f"{out} holds a search with other {name} ({before}, not {value}): give another --out")
        study.set_user_attr(name, value)


def _enqueue(study: Any, space: Mapping[str, Space], values: Mapping[str, Any], variant: Mapping[str, Any]) -> None:
    """Queues the first trial of a new study, the trials that were running when it stopped, and the user's variant."""
    start = dict.fromkeys(space, False) | {name: x for name, x in as_parameters(values).items() if name in space}
    if not any("start" in trial.user_attrs for trial in _in(study, "RUNNING", "WAITING", "COMPLETE", "PRUNED")):
        study.enqueue_trial(start, user_attrs={"start": True})
    for trial in _in(study, "RUNNING"):
        study.tell(trial.number, state=_optuna().trial.TrialState.FAIL)
        study.enqueue_trial(trial.params or start, user_attrs=trial.user_attrs)
    known = [trial.user_attrs.get("variant") for trial in _in(study, "WAITING", "COMPLETE", "PRUNED")]
    if variant and variant not in known:
        parameters = as_parameters({**values, **variant}).items()
        inside = {name: x for name, x in parameters if name in space and holds(space[name], x)}
        study.enqueue_trial(start | inside, user_attrs={"variant": variant})


def _in(study: Any, *states: str) -> list[Any]:
    return [trial for trial in study.trials if trial.state.name in states]


def _count(study: Any) -> int:
    return len(_in(study, "COMPLETE", "PRUNED"))


def _best_and_start(study: Any) -> tuple[Any, Any]:
    """The best trial, the first of several, and that of the settings where the search started."""
    complete = _in(study, "COMPLETE")
    start = next((trial for trial in complete if "start" in trial.user_attrs), None)
    if start is None:
        killed = any("start" in trial.user_attrs for trial in _in(study, "RUNNING"))
        fault = f"ended: {KILLED}; the same command tries again" if killed else "has no score: change them by --set"
        raise TrainingError(f"the trial of the settings where the search starts {fault}")
    return max(complete, key=lambda trial: (trial.value, -trial.number)), start


def _validate(
    study: Any, best: Any, start: Any, problem: _Problem, seeds: Sequence[int], jobs: int, say: Callable[[str], None]
) -> dict[int, Interval]:
    """Scores of the best trial and of the start on other seeds. Those of an earlier session are kept."""
    scores: dict[str, float] = dict(study.user_attrs.get("validation", {}))
    trials = {trial.number: trial.user_attrs["settings"] for trial in (best, start)} if seeds else {}
    runs = {f"{n}:{seed}": (problem, settings, seed) for n, settings in trials.items() for seed in seeds}
    runs = {key: run for key, run in runs.items() if key not in scores}
    if runs:
        say(f"validating trials {', '.join(sorted(map(str, trials)))} on other seeds")
    for key, score in each(_validation_run, runs, jobs):
        if score is None:
            raise TrainingError(f"validation: {KILLED}")
        scores[key] = score
        study.set_user_attr("validation", scores)
    return {n: iqm_interval([[scores[f"{n}:{seed}"] for seed in seeds]]) for n in trials}


def _validation_run(run: tuple[_Problem, dict[str, Any], int]) -> float:
    torch.set_num_threads(1)
    problem, settings, seed = run
    return score_of(list(curve(problem.algorithm, problem.env, settings, seed)))


def _preset(problem: _Problem, settings: Mapping[str, Any], comments: Sequence[str]) -> bytes:
    """The preset file."""
    lines = [f"# {one_line(comment)}" for comment in comments]
    if problem.algorithm in ALGORITHMS:
        lines.append(f'algorithm = "{problem.algorithm}"')
    table = [f"{name} = {_toml(x)}" for name, x in settings.items()]
    return "\n".join([*lines, "", f"[{_toml(problem.env)}]", *table, ""]).encode()


def _toml(x: Any) -> str:
    """A value as TOML, which writes numbers, texts and lists as JSON does. It has no None: a setting takes "none"."""
    if isinstance(x, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(value)}" for key, value in x.items()) + "}"
    return json.dumps("none" if x is None else x, ensure_ascii=False)
