"""Settings of language tasks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal

import transformers
from transformers import PreTrainedTokenizerBase

from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import Advanced, Count, NonNegative, NonNegativeInt, OrObject, Positive, Range
from rlzoo.core.task import Setup, TaskSettings, check_fisher_fraction
from rlzoo.lm.model.precision import has_bfloat16
from rlzoo.lm.model.saving import read_config

Text = Annotated[str, OrObject()]
SMALL = 10_000_000
"""Parameters up to which a language model is a small one."""
_REWARD = 'reward must be a score or several with weights, such as reward=[(brevity, 1.0), ("module:function", 0.5)]'

NO_TOKENIZER = "tokenizer is missing: a loaded model needs one, such as tokenizer=tokenizer"


@dataclass(frozen=True)
class Language(TaskSettings):
    """Settings of a language task: model, prompts, score, per-token rewards, memory."""

    of_model: ClassVar[frozenset[str]] = frozenset({
        "temperature", "critic", "lora_rank", "precision", "attention", "micro_batch_tokens", "gradient_checkpointing",
    })  # fmt: skip
    kept: ClassVar[frozenset[str]] = frozenset({"model", "tokenizer", "prompts", "eval_prompts"})
    defaults: ClassVar[Mapping[str, Any]] = {"gamma": 1.0, "minibatch_responses": 16, "vf_minibatch_responses": 16}
    memory: ClassVar[tuple[str, ...]] = ("micro_batch_tokens", "responses_per_batch", "max_new_tokens")
    units: ClassVar[Mapping[str, tuple[str, str]]] = {
        "total_steps": ("total_steps", "Tokens of responses to train for."),
        "compile": ("compile", "Not available for language models."),
        "eval_interval": ("eval_interval", "Tokens between evaluations; none for a tenth of total_steps."),
        "checkpoint_interval": ("checkpoint_interval", "Tokens between checkpoints; none for a tenth of total_steps."),
        "stop_return": ("stop_return", "Stop when an evaluation reaches this mean score; none for no stop."),
        "eval_episodes": ("eval_episodes", "Responses of each evaluation."),
        "final_eval_episodes": (
            "final_eval_episodes",
            "Responses of each of the two final evaluations, stochastic and deterministic.",
        ),
        "minibatch_size": ("minibatch_responses", "Responses in a minibatch, or all."),
        "vf_minibatch_size": ("vf_minibatch_responses", "Responses in a minibatch when fitting the value, or all."),
    }

    title: ClassVar[str] = "Language task"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Reward": (
            "reward", "beta", "beta_target", "beta_horizon", "kl_estimator",
            "score_clip", "score_normalization", "missing_eos_penalty",
        ),
        "Evaluation and files": ("eval_prompts", "log_samples"),
        "Memory and speed": ("lora_rank", "precision", "attention", "micro_batch_tokens", "gradient_checkpointing"),
    }  # fmt: skip

    responses_per_batch: Count = 64
    """Responses in a buffer."""
    model: Text | None = None
    """Directory, GGUF file or Hub name of the actor to start from, or the directory of a run, for its final actor; none
    for the task's own SFT checkpoint."""
    tokenizer: Text | None = None
    """Directory, GGUF file or Hub name of the tokenizer; none for the model's own."""
    prompts: Text | None = None
    """File of prompts, .txt (one in each line), .jsonl or .parquet, or the directory of a dataset; none for the task's
    own (Prompts has none)."""
    reward: Annotated[str | tuple[str, ...], OrObject()] | None = None
    """Score of a response: module:function, or the directory of a reward model; none for the task's own (Prompts has
    none). Several are added, each with a weight, such as score.py:brevity models/reward=0.5."""
    beta: NonNegative = 0.05
    """β, the weight of the KL to the reference in the reward of each token."""
    beta_target: Positive | None = None
    """KL of a whole response, in nats, that β adapts to; none keeps β fixed."""
    beta_horizon: Advanced[Positive] = 10_000.0
    """Responses over which an adaptive β changes by about a fifth at most."""
    kl_estimator: Advanced[Literal["k1", "k2", "k3", "full"]] = "k1"
    """Estimator of a token's KL: k1 = log π − log π_ref, k2 = ½·k1², k3 = e^(−k1) − 1 + k1, or full (exact)."""
    score_clip: Advanced[Positive | None] = None
    """Bound on the absolute value of a score."""
    score_normalization: Advanced[Literal["none", "running", "reference"]] = "none"
    """Shift and scale scores by their running mean and std, or so that those of the reference have mean 0 and std 1."""
    missing_eos_penalty: NonNegative = 0.0
    """Subtracted from the score of a response that reaches the token limit without a stop token."""
    max_new_tokens: Count = 32
    """Largest number of tokens in a response, replies included; reaching it ends the response."""
    max_prompt_tokens: Advanced[Count | None] = None
    """Largest number of tokens in a prompt; a longer one is an error. none for what fits into the model's context."""
    responses_per_prompt: Count = 1
    """Responses to each prompt in a buffer; responses_per_batch must be a multiple of it."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end a response or a turn; empty for the tokenizer's end of sequence and those of the model's
    generation configuration."""
    reply: Text | None = None
    """What is said to the model when it has ended a turn: module:function; none for the task's own, or for responses of
    one turn."""
    max_turns: Count | None = None
    """The model's turns after which a conversation ends; none for any number."""
    allowed_tokens: Advanced[Text | None] = None
    """Function of a row's tokens to the tokens that may come next: module:function; none for all tokens."""
    temperature: Annotated[float, Range(1e-6)] = 1.0
    """Divides the logits of policy and reference, in sampling and in log-probabilities alike."""
    critic: Advanced[Literal["head", "actor", "reward-model"]] = "head"
    """The value: a head on the actor's trunk, or a separate transformer initialised from the actor or reward model."""
    lora_rank: Count | None = None
    """Train a LoRA adapter of this rank, with the model without it as the reference; needs rlzoo[peft]."""
    ptx: Advanced[str | None] = None
    """File of texts, .txt (one in each line), .jsonl or .parquet, for a pretraining loss added to the objective."""
    ptx_coef: Advanced[NonNegative] = 1.0
    """Weight of the pretraining loss per token."""
    ptx_rows: Advanced[Count | None] = None
    """Texts for each gradient; none for as many as it has responses."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; parameters and optimiser stay in float32."""
    attention: Advanced[Literal["auto", "eager", "sdpa"]] = "auto"
    """Implementation of attention; auto is eager for the forward mode of NPG and TRPO without epochs, else sdpa."""
    micro_batch_tokens: Count | None = None
    """Tokens of a micro-batch, which changes memory but not results; none for a whole minibatch."""
    gradient_checkpointing: Advanced[bool] = False
    """Recompute activations in the backward pass instead of keeping them."""
    eval_prompts: Text | None = None
    """File of prompts for evaluations; none for the task's own, or those of training."""
    log_samples: Advanced[NonNegativeInt] = 4
    """Responses to log at each evaluation."""

    @classmethod
    def kind(cls, env: str, settings: Mapping[str, Any]) -> str:
        """By LoRA and the size of the model. The package's SFT checkpoints are small."""
        if settings.get("lora_rank") not in (None, "none"):
            return "language with LoRA"
        model = settings.get("model", cls.model)
        return "a small language model" if model is None or _is_small(model) else "language"

    @property
    def rewards(self) -> list[tuple[Any, float]]:
        """Each score of `reward`, a name or a function, with its weight."""
        given: Any = self.reward
        if given is None:
            return []
        items = given if isinstance(given, (list, tuple)) else [given]
        pairs = list(given.items()) if isinstance(given, Mapping) else [self._with_weight(item) for item in items]
        for score, weight in pairs:
            number = isinstance(weight, (int, float)) and not isinstance(weight, bool) and math.isfinite(weight)
            require(number and not isinstance(score, (int, float)), f"{_REWARD}, got {given!r}")
        require(bool(pairs), f"{_REWARD}, got {given!r}")
        return pairs

    @staticmethod
    def _with_weight(item: Any) -> tuple[Any, float]:
        """A score with its weight: a pair, a text such as "module:function=0.5", or a score of weight 1."""
        if isinstance(item, (list, tuple)):
            require(len(item) == 2, f"{_REWARD}, got {item!r}")
            return item[0], item[1]
        name, _, weight = item.rpartition("=") if isinstance(item, str) else ("", "", "")
        with contextlib.suppress(ValueError):
            if name and not Path(item).exists():
                return name, float(weight)
        return item, 1.0

    @property
    def reward_model(self) -> str | None:
        """Directory of the first reward model among the scores."""
        names = (name for name, _ in self.rewards if isinstance(name, str))
        return next((name for name in names if Path(name).is_dir()), None)


def check_language(settings: Language, setup: Setup) -> None:
    """Raises `ConfigError` if the settings do not go together, or do not fit the rest of the run."""
    algorithm = setup.algorithm
    rows, each = settings.responses_per_batch, settings.responses_per_prompt
    require(not setup.grouped or each > 1, "responses_per_prompt must be at least 2 for group advantages, got 1")
    require(rows % each == 0, f"responses_per_batch must be a multiple of responses_per_prompt = {each}, got {rows}")
    check_fisher_fraction(setup, rows, "responses_per_batch")
    has_precision = settings.precision == "float32" or has_bfloat16(setup.device)
    require(has_precision, f"precision: {setup.device} does not compute in bfloat16; use float32")
    if setup.second_order:
        fault = f"attention: {algorithm} needs forward-mode derivatives, which sdpa does not have; use eager"
        require(settings.attention != "sdpa", fault)
        lacks = f"has no forward-mode derivatives, which {algorithm} needs; use micro_batch_tokens"
        require(not settings.gradient_checkpointing, f"gradient_checkpointing {lacks}")
    if settings.beta_target is not None:
        fault = f"beta_horizon must be above a fifth of responses_per_batch = {rows}, got {settings.beta_horizon:g}"
        require(0.2 * rows < settings.beta_horizon, fault)
        require(settings.beta > 0, "beta must be above 0 to adapt to beta_target")
    require(not setup.compile, "compile is not available for language models")
    require(
        settings.critic != "reward-model" or settings.reward_model is not None,
        "critic: to start from the reward model, reward must be the directory of one",
    )
    model: Any = settings.model
    named = model is None or isinstance(model, (str, Mapping))
    adapted = hasattr(model, "merge_and_unload")
    require(named or adapted or isinstance(model, transformers.PreTrainedModel), misfit("model", model))
    tokenizer = settings.tokenizer
    require(isinstance(tokenizer, (NoneType, str, Mapping, PreTrainedTokenizerBase)), misfit("tokenizer", tokenizer))
    require(named or tokenizer is not None, NO_TOKENIZER)


def misfit(name: str, x: Any, noun: str = "one") -> str:
    """The message for a setting `name` that is neither the name of a model or tokenizer nor a loaded one."""
    return f'{name} must be a directory, a Hub name or a loaded {noun}, such as {name}="gpt2", got {type(x).__name__}'


def _is_small(model: Any) -> bool:
    """Whether a loaded model, or one in a directory or run, has few parameters. Others count as large."""
    if hasattr(model, "parameters"):
        return sum(p.numel() for p in model.parameters()) <= SMALL
    if not isinstance(model, str):
        return False
    folder = Path(model, "actor") if Path(model, "actor").is_dir() else Path(model)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    config = read_config(folder)
    half = config.get("dtype", config.get("torch_dtype")) in ("bfloat16", "float16")
    return 0 < sum(sizes) <= (2 if half else 4) * SMALL
