"""The settings of a language task, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlzoo.core.errors import require
from rlzoo.core.estimators import GroupNorm, LeaveOneOut
from rlzoo.core.fields import Count, NonNegative, NonNegativeInt, Positive, check_fields
from rlzoo.core.task import Say, Task, TaskSettings, silent
from rlzoo.lm import TASKS

if TYPE_CHECKING:
    from rlzoo.core.models import ActorCritic
    from rlzoo.runs.config import Config


@dataclass(frozen=True)
class Language(TaskSettings):
    """What a language model is trained on, and how the reward of each token comes about."""

    model: str | None = None
    """Directory or hub name of the actor to start from; None for the task's own supervised start."""
    prompts: str | None = None
    """File of prompts, .txt (one a line) or .jsonl; None for the task's own."""
    reward: str | None = None
    """Score of a response: module:function, or the directory of a reward model; None for the task's own."""
    beta: NonNegative = 0.05
    """β, the weight of the KL to the reference in the reward of each token."""
    beta_target: Positive | None = None
    """KL of a whole response, in nats, that β adapts to; None keeps β fixed."""
    beta_horizon: Positive = 10_000.0
    """Responses over which an adaptive β changes by at most a fifth."""
    kl_estimator: Literal["k1", "k2", "k3", "full"] = "k1"
    """The KL of a token: log π − log π_ref, half its square, the estimator that is never negative, or exact."""
    score_clip: Positive | None = None
    """Bound on the absolute value of a score."""
    score_normalization: Literal["none", "running", "reference"] = "none"
    """Shift and scale scores: by their running mean and deviation, or so that the reference's have mean 0, std 1."""
    missing_end_penalty: NonNegative = 0.0
    """Taken off the score of a response that does not end by itself."""
    max_new_tokens: Count = 32
    """Tokens of a response at most; reaching them ends it."""
    max_prompt_tokens: Count | None = None
    """Tokens of a prompt at most; a longer one is an error. None for what the model's context leaves room for."""
    responses_per_prompt: Count = 1
    """Responses to each prompt in a buffer; num_envs must be a multiple of it."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end a response; none for the tokenizer's own end of sequence."""
    temperature: Positive = 1.0
    """Divides the logits of policy and reference, in sampling and in log-probabilities alike."""
    critic: Literal["head", "actor", "reward-model"] = "head"
    """The value: a head on the actor, or a transformer of its own, started from the actor or the reward model."""
    lora_rank: Count | None = None
    """Train an adapter of this rank, and use the model without it as the reference; needs rlzoo[peft]."""
    ptx: str | None = None
    """File of texts, .txt (one a line) or .jsonl, whose likelihood is raised along with the reward."""
    ptx_coef: NonNegative = 1.0
    """γ, the weight of E[log π] per token of these texts."""
    ptx_rows: Count | None = None
    """Texts in a buffer; as many as responses if not given."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; parameters and optimiser stay in float32."""
    attention: Literal["auto", "eager", "sdpa"] = "auto"
    """Implementation of attention: fused (sdpa), unless the algorithm differentiates twice."""
    part_tokens: Count | None = None
    """Tokens that a gradient may hold in memory at once; None for a whole minibatch."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    eval_prompts: str | None = None
    """File of prompts for evaluations; None for those of the training."""
    log_samples: NonNegativeInt = 4
    """Responses to show at each evaluation."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, config: Config) -> None:
        algorithm = config.algorithm
        rows, each = config.num_envs, self.responses_per_prompt
        grouped = isinstance(algorithm.estimator, (LeaveOneOut, GroupNorm))
        require(not grouped or each > 1, "responses_per_prompt must be at least 2 for advantages within a group, got 1")
        require(rows % each == 0, f"num_envs must be a multiple of responses_per_prompt = {each}, got {rows}")
        require(
            not (self.attention == "sdpa" and algorithm.second_order),
            f"attention: {algorithm.name} differentiates twice, which fused attention (sdpa) cannot; use eager",
        )
        require(
            not (self.gradient_checkpointing and algorithm.second_order),
            f"gradient_checkpointing cannot be differentiated twice, as {algorithm.name} does; use part_tokens",
        )
        require(
            self.beta_target is None or 0.2 * rows < self.beta_horizon,
            f"beta_horizon must be above a fifth of num_envs = {rows}, got {self.beta_horizon:g}",
        )
        require(self.beta_target is None or self.beta > 0, "beta must be above 0 to adapt to beta_target")
        require(not config.compile, "compile is for control environments; language models run as they are")
        require(self.critic != "reward-model" or self.reward_model is not None, _NO_REWARD_MODEL)
        if config.env == "Prompts":
            for name in ("model", "prompts", "reward"):
                require(getattr(self, name) is not None, f"{name} is missing: Prompts has none of its own")

    @property
    def reward_model(self) -> str | None:
        """Directory of the reward model, if that is what scores."""
        return self.reward if self.reward is not None and Path(self.reward).is_dir() else None

    def make(
        self, config: Config, model: ActorCritic | None = None, folder: Path | None = None, say: Say = silent
    ) -> Task:
        from rlzoo.lm.tasks.language import LanguageTask

        return LanguageTask(self, config, model, folder, say)


_NO_REWARD_MODEL = "critic: to start from the reward model, reward must be the directory of one"


def language_task(env: str) -> Language | None:
    """The settings that a language task starts from; None if `env` is no language task."""
    return _TASKS.get(env)


_TASKS = {
    "RandomWalks": Language(max_new_tokens=9, stop_tokens=("a",)),
    "Reviews": Language(max_new_tokens=24),
    "Prompts": Language(),
}
assert _TASKS.keys() == TASKS.keys()
