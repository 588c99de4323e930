"""A language model as a table of log-probabilities, with its derivative: thousands of gradients in a few seconds.

A loss of the package depends on θ through the log-probabilities at the states of a task. Its gradient is that with
respect to the table times the table's Jacobian, which is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.studies.estimators.task import Enumeration
from rlzoo.core.distributions import Categorical
from rlzoo.core.models import ActorCritic, Policy, Value
from rlzoo.lm.model.language_model import LanguageModel


@dataclass(frozen=True)
class Table:
    """log π(a|s) of a model at every state, and its Jacobian with respect to θ."""

    log_probs: Float[Tensor, "S V"]
    jacobian: Float[Tensor, "S*V P"]

    @classmethod
    def of(cls, model: LanguageModel, task: Enumeration) -> Table:
        parameters = model.policy_parameters()
        ones = torch.eye(task.vocabulary, dtype=torch.float64)
        rows, jacobian = [], []
        for obs in task.states():
            log_probs = model.policy.functional(model.trunk(obs)[:, -1]).log_softmax(-1)[0]
            grads = torch.autograd.grad(log_probs, parameters, ones, is_grads_batched=True)
            rows.append(log_probs.detach())
            jacobian.append(torch.cat([g.flatten(1) for g in grads], 1))
        return cls(torch.stack(rows), torch.cat(jacobian))

    def model(self) -> TabularModel:
        return TabularModel(self.log_probs)

    def gradient(self, of_table: Float[Tensor, "*batch S V"]) -> Float[Tensor, "*batch P"]:
        """The gradient with respect to θ, given the one with respect to the table."""
        return of_table.flatten(-2) @ self.jacobian


class TabularModel(ActorCritic):
    """An actor-critic that observes the index of a state (N, T). Its parameters are the logits (S, V) of each."""

    context = 0

    def __init__(self, logits: Float[Tensor, "S V"]) -> None:
        super().__init__(TabularPolicy(logits), NoValue())

    @property
    def logits(self) -> Float[Tensor, "S V"]:
        assert isinstance(self.policy, TabularPolicy)
        return self.policy.logits


class TabularPolicy(Policy):
    def __init__(self, logits: Float[Tensor, "S V"]) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, features: Tensor, memory: None = None) -> tuple[Categorical, None]:
        return Categorical(self.logits[features]), None


class NoValue(Value):
    """A value of 0 everywhere."""

    def forward(self, features: Tensor) -> Float[Tensor, "N T"]:
        return torch.zeros(features.shape, dtype=torch.float64)
