"""Rewards of complete responses: the KL to the reference, weighted by β, and the score."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.core.system.errors import require
from rlzoo.lm.model.language_model import LanguageModel, Reference
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.lm.reward.scores import Score, WeightedSum, load_score, score_name
from rlzoo.lm.reward.shaping import (
    KL_ESTIMATORS,
    FixedKL,
    KLController,
    Moments,
    ScoreTreatment,
    sequence_kl,
    shaped_reward,
)


class Scoring:
    """r_t = −β·kl_t + [t = last]·score (Ziegler et al. 2019, eq. 2).

    kl_t comes from the log-probabilities of the policy and of the frozen reference. β and the running moments of scores
    advance from batch to batch.

    Args:
        score: `(prompts, responses, **columns) -> scores`, one number for each response.
        name: of the score, for messages.
        kl_estimator: k1, k2, k3 or full (see `rlzoo.lm.reward.shaping`).
        control: the rule for β.
        treatment: normalisation and clipping of scores, starting from `moments`.
    """

    def __init__(
        self,
        score: Score,
        name: str = "score",
        kl_estimator: str = "k1",
        control: KLController | None = None,
        treatment: ScoreTreatment | None = None,
        moments: Moments | None = None,
    ) -> None:
        self.score, self.name = score, name
        known = " or ".join(KL_ESTIMATORS)
        require(kl_estimator in KL_ESTIMATORS, f"kl_estimator must be {known}, got {kl_estimator!r}")
        self.kl_estimator = KL_ESTIMATORS[kl_estimator]
        self.control = control or FixedKL()
        self.treatment = treatment or ScoreTreatment()
        self.moments = moments or Moments()
        self.beta = self.control.beta

    @torch.no_grad()
    def kl(self, model: LanguageModel, reference: Reference, rows: Buffer) -> Float[Tensor, "N T"]:
        """The estimate of KL(π ‖ π_ref) at each acting step."""
        steps = rows.mask.shape[1]
        if self.kl_estimator is not None:
            # Of all columns, as `rows.logp` is: of fewer they may round otherwise, and equal policies would have a KL.
            other = reference.distribution(rows.obs).map(lambda x: x[:, :steps])
            return self.kl_estimator(rows.logp, other.log_prob(rows.action))
        tokens = rows.obs.columns(0, steps)
        return model.distribution(tokens).kl(reference.distribution(tokens))

    def reward(
        self,
        mask: Bool[Tensor, "N T"],
        ended: Bool[Tensor, "N"],
        kl: Float[Tensor, "N T"],
        score: Float[Tensor, "N"],
        *parts: Float[Tensor, "N"],
    ) -> tuple[Float[Tensor, "N T"], dict[str, float]]:
        """The rewards, and metrics of the raw scores. Advances an adaptive β and running moments by one batch.

        `ended` is whether each response ended with a stop token.
        """
        names = self.score.parts if isinstance(self.score, WeightedSum) else ()
        treated, self.moments = self.treatment(score, ended, self.moments)
        total = sequence_kl(kl, mask)
        metrics = {
            "score": float(score.mean()),
            "score_std": float(score.std(correction=0)),
            **{f"score_{name}": float(part.mean()) for name, part in zip(names, parts, strict=True)},
            "kl_reference": float(total.mean()),
            "beta": self.beta,
            "ended": float(ended.float().mean()),
        }
        reward = shaped_reward(kl, treated.to(kl.dtype), self.beta, mask)
        self.beta = self.control.update(self.beta, float(total.mean()), len(total))
        return reward, metrics

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta, "moments": dataclasses.asdict(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta = float(state["beta"])
        count, mean, m2 = (float(state["moments"][name]) for name in ("count", "mean", "m2"))
        if not (math.isfinite(self.beta + mean + m2) and min(self.beta, count, m2) >= 0):
            raise ValueError(f"beta {self.beta} and moments {state['moments']} of scores cannot be")
        self.moments = Moments(int(count), mean, m2)


def load_scores(rewards: Sequence[tuple[Any, float]], device: str) -> tuple[Score, str]:
    """Scores with weights, given as for `load_score` or as directories of reward models, as one, and its name."""
    parts: dict[str, tuple[Score, float]] = {}
    for spec, weight in rewards:
        is_model = isinstance(spec, str) and Path(spec).is_dir()
        score = RewardModel.load(spec, device=device) if is_model else load_score(spec)
        name = score_name(spec)
        if len(rewards) == 1 and weight == 1:
            return score, spec if isinstance(spec, str) else name
        names = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(2)))
        free = next(x for x in names if x not in (*parts, "std"))  # score_std is another metric
        parts[free] = score, weight
    return WeightedSum(parts), "sum"
