"""What each update of a run did, measured without affecting the run."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

from rlzoo.core.models import ActorCritic
from rlzoo.optim.objective import policy_statistics, with_old
from rlzoo.runs.loop import Iteration, Trainer

BOUND = 0.01
"""Nats. The default bound or target of every algorithm that has one."""
CLIP = 0.2
"""The default clip range of the ratio."""
ROUNDING = 1e-3
"""Relative difference between two computations of a KL that is not counted."""


class Updates:
    """Measures a trainer's updates, each on the buffer that it was made from.

    With r = π/π_old after the update and whitened advantages Â, so that E[Â] = 0.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._algorithm: Any = trainer.algorithm
        self._rows: list[dict[str, float]] = []
        self._returns: list[float] = []
        self._episodes: deque[float] = deque(maxlen=100)
        trainer.algorithm = self  # type: ignore[assignment]

    def update(self, model: ActorCritic, state: Any, buffer: Any) -> Any:
        """The algorithm's update, measured."""
        batch = with_old(model, self._algorithm.estimator(buffer).rows(model.context).whitened)
        metrics = self._algorithm.update(model, state, buffer)
        after = policy_statistics(model, batch)
        assert after.kl is not None
        ratio = torch.exp(after.log_prob - batch.logp)
        delta = getattr(self._algorithm, "max_kl", getattr(self._algorithm, "step_kl", None))
        self._rows.append({
            **({} if delta is None else {"bound": state.at(delta)}),
            "kl": float(batch.mean(after.kl)),
            "surrogate": float(batch.mean((ratio - 1) * batch.advantage)),
            "outside": float(batch.mean(((ratio - 1).abs() > CLIP).to(ratio.dtype))),
            "ratio": float(ratio[batch.mask].max()),
        })  # fmt: skip
        return metrics

    def add(self, iteration: Iteration) -> None:
        """Adds what an iteration itself knows of its update."""
        row = self._rows[-1]
        row |= {name: iteration.metrics[name] for name in ("backtracks", "accepted") if name in iteration.metrics}
        returns = [episode.return_ for episode in iteration.episodes]
        self._episodes.extend(returns)
        if returns:
            self._returns.append(float(np.mean(returns)))

    def summary(self) -> dict[str, float]:
        """Shares of the updates, and quantiles over them.

        `kl_median`, `kl_p95` and `kl_max` are of the exact mean KL(π_old ‖ π); `kl_above` is the share of updates where
        it exceeds `BOUND`, and `kl_above_bound` where it exceeds the algorithm's own δ, if it has one, by more than
        rounding; `surrogate_fell` the share where E[r·Â] fell; `return_fell` the share of buffers with a
        lower mean return than the one before, among buffers in which an episode ended; `ratio_outside` the mean share
        of steps with r outside 1 ± `CLIP`; `ratio_p95` the 95th percentile over updates of the largest r. `last_100` is
        the mean return of the last 100 episodes of training, the score of Schulman et al. 2017.
        """
        columns = {name: np.array([row[name] for row in self._rows if name in row]) for name in self._rows[-1]}
        kl = columns["kl"]
        summary = {
            "updates": len(self._rows),
            "kl_median": np.median(kl),
            "kl_p95": np.quantile(kl, 0.95),
            "kl_max": kl.max(),
            "kl_above": (kl > BOUND).mean(),
            "surrogate_fell": (columns["surrogate"] < 0).mean(),
            "ratio_outside": columns["outside"].mean(),
            "ratio_p95": np.quantile(columns["ratio"], 0.95),
        }
        if "bound" in columns:
            summary["kl_above_bound"] = (kl > columns["bound"] * (1 + ROUNDING)).mean()
        if self._episodes:
            summary["last_100"] = np.mean(self._episodes)
        if len(self._returns) > 1:
            summary["return_fell"] = (np.diff(self._returns) < 0).mean()
        if "backtracks" in columns:
            summary |= {"backtracks": columns["backtracks"].mean(), "rejected": 1 - columns["accepted"].mean()}
        return {name: float(x) for name, x in summary.items()}
