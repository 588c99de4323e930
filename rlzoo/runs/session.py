"""A training session of a run: iterations, with evaluations, checkpoints, hooks and signals between them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch

from rlzoo.core.env import ENDLESS, Episode
from rlzoo.core.system.errors import EnvError, Interrupted, NonFiniteError, ProcessError, TrainingError, require
from rlzoo.core.system.progress import operation
from rlzoo.core.system.streams import number, stream
from rlzoo.runs.evaluate import describe_evaluation
from rlzoo.runs.logs.logger import Logger
from rlzoo.runs.loop import Iteration, Trainer
from rlzoo.runs.run import Run
from rlzoo.runs.signals import Signals

OnIteration = Callable[[Trainer, Iteration], bool | Mapping[str, float] | None]


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """Functions that training calls, each with the trainer first. They may change training only by `Trainer.set_attr`.

        rlzoo.train("ppo", "CartPole-v1", hooks=rlzoo.Hooks(on_evaluation=report))

    Of several processes that train one run, the first calls them.
    """

    on_start: Callable[[Trainer], Any] = _nothing
    """Called when training starts or is resumed."""
    on_episode: Callable[[Trainer, Episode], Any] = _nothing
    """Called for each episode that ended in an iteration."""
    on_iteration: OnIteration = _nothing
    """Called after each iteration. Returning True ends the run. Numbers that it returns by name, or writes into
    `iteration.metrics`, are logged."""
    on_evaluation: Callable[[Trainer, dict[str, Any]], Any] = _nothing
    """Called after each evaluation with its line of `evaluations.jsonl`. Returning True in training ends the run."""
    on_end: Callable[[Trainer], Any] = _nothing
    """Called when the run has finished, after the final evaluations."""

    @classmethod
    def of(cls, hooks: Hooks | None, on_iteration: OnIteration | None) -> Hooks:
        """The hooks, with `on_iteration` if it is given."""
        hooks = cls() if hooks is None else hooks
        require(isinstance(hooks, cls), f"hooks must be Hooks, such as Hooks(on_end=f), got a {type(hooks).__name__}")
        if on_iteration is None:
            return hooks
        require(hooks.on_iteration is _nothing, "give on_iteration either in hooks or beside them")
        return replace(hooks, on_iteration=on_iteration)


class Session:
    """Trains from the trainer's present step to the end of the run.

    Evaluations and checkpoints depend on step counts alone. So an interruption does not change the result.

    Args:
        stopped: a hook has ended the run before.
    """

    def __init__(self, trainer: Trainer, run: Run, logger: Logger, hooks: Hooks, stopped: bool = False) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.run, self.identity = run, run.identity()
        self.logger = logger
        self.hooks = hooks
        self.stopped = stopped
        tenth = max(1, self.config.total_steps // 10)
        self.eval_interval = self.config.eval_interval or tenth
        self.checkpoint_interval = self.config.checkpoint_interval or tenth
        self.best_return = -math.inf
        self.signals = Signals()

    def go(self) -> None:
        """Trains to the end of the run. Raises `TrainingError` if that fails, `Interrupted` after a signal."""
        self.logger.display.start(self.trainer.step, self.config.total_steps)
        ended = False
        try:
            with self.logger.display, self._failures_named(), self.signals:
                self.hooks.on_start(self.trainer)
                if not self._complete_interrupted():
                    self._train()
                self._finish()
                self.hooks.on_end(self.trainer)
            ended = True
        finally:
            self.logger.close(ended)
            self.trainer.task.close()

    def _complete_interrupted(self) -> bool:
        """Does what an interruption left out. Returns whether the run ended at the present step."""
        trainer = self.trainer
        enough = self._read_evaluations()
        if trainer.task.starts_from is not None and not self.run.steps():
            self._save(None)  # so that the run no longer depends on the one that it started from
        if trainer.step == 0 and trainer.task.evaluates_start and not self.run.evaluations():
            self._evaluate(self.config.eval_episodes)
        ended = (enough or self.stopped) and self.run.extended_at != trainer.step
        if trainer.done or any(evaluation["step"] == trainer.step for evaluation in self.run.evaluations()):
            return ended
        # A signal may have stopped the evaluation that was due after the last iteration.
        before = max((record["step"] for record in self.run.metrics() if record["step"] < trainer.step), default=0)
        return self._evaluate_and_save(before, ended) if self._due(self.eval_interval, before) else ended

    def _train(self) -> None:
        before = self.trainer.step
        for iteration in self.trainer:
            self.stopped = self._call_hooks(iteration)
            self.logger.iteration(iteration)
            if self._evaluate_and_save(before, self.stopped):
                if self.stopped:
                    self.logger.display.say(f"a hook ended the run at step {iteration.step:,}")
                break
            before = iteration.step

    def _call_hooks(self, iteration: Iteration) -> bool:
        """Calls the hooks of an iteration, and adds their metrics to its own. Returns whether they end the run."""
        for episode in iteration.episodes:
            self.hooks.on_episode(self.trainer, episode)
        answer = self.hooks.on_iteration(self.trainer, iteration)
        if isinstance(answer, Mapping):
            iteration.metrics.update({name: x for name, x in answer.items() if name not in iteration.metrics})
            return False
        fault = f"on_iteration must return True, False, None or metrics by name, got {answer!r}"
        require(answer is None or isinstance(answer, (bool, np.bool_)), fault)
        return bool(answer)

    def _read_evaluations(self) -> bool:
        """Reads the best return so far from the evaluations. Returns whether the last one ended the run."""
        enough, best_step = False, None
        for evaluation in self.run.evaluations():
            step, mean_return = evaluation["step"], evaluation["mean_return"]
            if not evaluation["deterministic"] and step > 0:
                enough = enough or (step == self.trainer.step and self._reaches_stop_return(mean_return))
                if mean_return > self.best_return:
                    self.best_return, best_step = mean_return, step
        if best_step in self.run.steps() and best_step != self.run.best_step():
            self.run.mark_best(best_step, self.best_return)
        return enough

    def _evaluate_and_save(self, before: int, stop: bool) -> bool:
        """What is due after an iteration that began at the step `before`. Returns whether the run ends here."""
        trainer, new_best = self.trainer, None
        if self._due(self.eval_interval, before) and not trainer.done:
            self.stopped = stop  # which a hook may change
            mean_return = self._evaluate(self.config.eval_episodes)["mean_return"]
            stop = self.stopped or self._reaches_stop_return(mean_return)
            if mean_return > self.best_return:
                self.best_return = new_best = mean_return
        save = self._due(self.checkpoint_interval, before) or new_best is not None
        if save or stop or trainer.done or self.signals.received:
            self._save(new_best)
        self._raise_on_signal(stop or trainer.done)
        return stop

    def _due(self, interval: int, before: int) -> bool:
        """Whether a multiple of `interval` was reached since the step `before`."""
        return self.trainer.step // interval > before // interval

    def _finish(self) -> None:
        """Makes the final evaluations, stochastic and deterministic, that an earlier session has not made."""
        step = self.trainer.step
        final = [x for x in self.run.evaluations() if x["final"] and x["step"] == step]
        for deterministic in (False, True)[len(final) :]:
            final.append(self._evaluate(self.config.final_eval_episodes, final=True, deterministic=deterministic))
            if not deterministic and final[0]["mean_return"] > self.best_return:
                self.run.mark_best(step, final[0]["mean_return"])
        self.trainer.task.end(self.run.path)
        self.logger.flush()
        self.logger.display.close()
        self.logger.display.say(describe_evaluation(step, *final[-2:]))

    def _evaluate(self, episodes: int, final: bool = False, deterministic: bool = False) -> dict[str, Any]:
        step, start = self.trainer.step, time.perf_counter()
        seed = number(stream(self.config.seed, "evaluation", step, final))
        name = ("final evaluation" if final else "evaluation") + (", deterministic" if deterministic else "")

        def on_step(done: int) -> None:
            evaluating.done = done
            if self.signals.received:
                if step > 0:
                    self._save(None)
                self._raise_on_signal(final or self.stopped)

        self.trainer.task.on_step = on_step
        with operation(name, episodes) as evaluating:
            try:
                evaluation = self.trainer.evaluate(episodes, seed=seed, deterministic=deterministic)
            except EnvError:
                on_step(0)  # a signal to all processes also ends those of environments
                raise
        cut = evaluation.further.get("cut_episodes")
        if cut:
            text = f"{cut} of {len(evaluation.returns)} episodes had not ended after {ENDLESS:,} steps and were cut"
            has_id = isinstance(self.config.env, str) and ":" not in self.config.env
            limit = "--env-kwargs {}" if has_id else '--wrapper "gymnasium.wrappers:TimeLimit({})"'
            self.logger.display.say(f"{name}: {text}; {limit.format('max_episode_steps=N')} limits them")
        record = self.logger.evaluation(step, time.perf_counter() - start, evaluation, final)
        answer = self.hooks.on_evaluation(self.trainer, record)
        if isinstance(answer, (bool, np.bool_)) and answer and not final:
            self.stopped = True
        return record

    def _reaches_stop_return(self, mean_return: float) -> bool:
        stop = self.config.stop_return
        return stop is not None and mean_return >= stop - 1e-6 * abs(stop)  # rewards are in single precision

    def _save(self, new_best: float | None) -> None:
        self.logger.flush()
        step, checkpoint = self.trainer.step, self.trainer.checkpoint()
        checkpoint.state["logger"] = self.logger.state_dict()
        if self.stopped:
            checkpoint.state["stopped"] = True
        # An interrupted evaluation may have left a checkpoint here, before the hook ended the run.
        self.run.save(step, checkpoint, self.identity, replace=self.stopped)
        if new_best is not None:
            self.run.mark_best(step, new_best)

    def _raise_on_signal(self, ended: bool = False) -> None:
        """Raises `Interrupted` if a signal has arrived; `ended` if only the final evaluation is missing."""
        if self.signals.received:
            step, command = f"{self.trainer.step:,}", f"rlzoo resume {quote(str(self.run.path))}"
            message = f"stopped at step {step}; continue with: {command}"
            if ended:
                message = f"training has finished at step {step}, its evaluation has not; complete it with: {command}"
            raise Interrupted(message, self.signals.received)

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Turns expected errors into a `TrainingError` that names the last checkpoint."""
        try:
            yield
        except (NonFiniteError, OSError, MemoryError, RuntimeError) as error:
            expected = isinstance(error, EnvError | ProcessError) or out_of_memory(error)
            if isinstance(error, RuntimeError) and not expected:
                raise
            cause = " ".join(str(error).split())
            if out_of_memory(error):
                values = [f"{name} = {getattr(self.config.task, name)}" for name in self.config.task.memory]
                cause = f"there is not enough memory{': lower ' * bool(values)}{', '.join(values)} ({cause})"
            if isinstance(error, OSError) and error.filename is not None:
                own = Path(str(error.filename)).absolute().is_relative_to(self.run.path.absolute())
                cause = f"cannot {'write' if own else 'use'} {error.filename}: {error.strerror}"
            steps = self.run.steps()
            remedy = "there is no checkpoint yet"
            if steps:
                remedy = f"the last checkpoint is at step {steps[-1]:,}: rlzoo resume {quote(str(self.run.path))}"
            elif not self.run.path.exists():
                remedy = "the run directory was deleted"
            raise TrainingError(f"step {self.trainer.step:,}: {cause}; {remedy}") from error


def out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed. PyTorch has no class for this error on the CPU."""
    texts = (
        "can't allocate memory",
        "not enough memory",
        "Storage size calculation overflowed",
        "numel: integer multiplication overflow",
    )
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(text in str(error) for text in texts)
