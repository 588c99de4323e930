"""Causal language models as actor-critics: the state is a token and all before it, the action is the next token."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedTokenizerBase

from rlzoo.core.distributions import Categorical
from rlzoo.core.models import ActorCritic, Policy, Value, single_precision
from rlzoo.core.system.errors import ConfigError, first_line, require
from rlzoo.core.system.functions import optional_module
from rlzoo.core.system.progress import track
from rlzoo.lm.model.padding import position_ids
from rlzoo.lm.model.precision import autocast, equal_but_for_rounding, kind_of
from rlzoo.lm.model.pretrained import check_precision, without_dropout
from rlzoo.lm.model.saving import save
from rlzoo.lm.model.tokens import Head, TokenDistribution, Tokens, apply_temperature, at_least_single

_NO_GRAD_TOKENS = {"cpu": 2**12, "other": 2**16}
"""Tokens of a micro-batch in forwards without gradient, by kind of device."""
_LARGE = 1024
"""Factor that brings the logits of random weights to a size at which a soft cap changes them."""


class Trunk(nn.Module):
    """A transformer without its head: (R, T) tokens to hidden states (R, T, H), 0 at steps that do not act."""

    def __init__(self, base: Any, precision: torch.dtype | None = None, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.base: Any = base
        self.precision = precision
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            fault = f"{type(base).__name__} has no gradient checkpointing: use micro_batch_tokens to save memory"
            require(getattr(base, "supports_gradient_checkpointing", True), fault)
            enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        double = any(p.dtype == torch.float64 for p in base.parameters())
        if double and hasattr(base, "set_experts_implementation"):  # since transformers 5
            base.set_experts_implementation("eager")  # the only one in double precision
        parameters = inspect.signature(base.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # its name before transformers 5.24

    def forward(self, tokens: Tokens) -> Float[Tensor, "R T H"]:
        rows, steps = tokens.token.shape
        size = max(1, _NO_GRAD_TOKENS[kind_of(next(self.base.parameters()).device)] // steps)
        if torch.is_grad_enabled() or size >= rows:
            return self.states(tokens)
        parts = [tokens.map(lambda x, i=i: x[i : i + size]) for i in range(0, rows, size)]  # type: ignore[misc]
        return torch.cat([self.states(part) for part in track("micro-batch", parts)])

    def states(self, tokens: Tokens) -> Float[Tensor, "R T H"]:
        """The hidden states, from one forward pass."""
        hidden = self.run(tokens.token, tokens.attention).last_hidden_state
        return hidden.masked_fill(~tokens.acts.unsqueeze(-1), 0)

    def run(
        self, token: Int[Tensor, "R T"], attention: Bool[Tensor, "R C"], cache: Cache | None = None, **more: Any
    ) -> Any:
        """The transformer's output for the last T of C tokens. The first C − T are in the cache, and T are added."""
        device = next(self.base.parameters()).device
        token, attention = token.to(device, non_blocking=True), attention.to(device, non_blocking=True)
        if self._takes_positions and "position_ids" not in more:
            more["position_ids"] = position_ids(attention)[:, -token.shape[1] :]
        if cache is not None:
            more[self._cache_name] = cache
        if self.gradient_checkpointing:  # works in training mode only, in which routers would sample their experts
            for module in (x for x in self.base.modules() if hasattr(x, "gradient_checkpointing")):
                module.training = torch.is_grad_enabled()
        with autocast(device, self.precision):
            inputs = {"input_ids": token, "attention_mask": attention.long(), "use_cache": cache is not None}
            return self.base(**{**inputs, **more})

    def new_cache(self) -> Cache:
        """An empty key-value cache."""
        return DynamicCache()


class TokenHead(Policy):
    """The output embedding of a language model, whose logits are divided by the temperature."""

    def __init__(self, head: nn.Module, temperature: float = 1.0, precision: torch.dtype | None = None) -> None:
        super().__init__()
        self.head = head
        self.temperature = temperature
        self.precision = precision

    def forward(self, hidden: Tensor, tokens: Tokens) -> TokenDistribution:  # type: ignore[override]
        return TokenDistribution(hidden, tokens.acts, self.functional, tokens.allowed)

    def logits(self, hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Logits for acting, computed by the module itself."""
        with autocast(hidden.device, self.precision):
            logits = self.head(hidden)
        return apply_temperature(at_least_single(logits), self.temperature)

    @property
    def functional(self) -> Head:
        """The head as a function that holds the current weights."""
        weight, bias = self.head.weight, getattr(self.head, "bias", None)
        assert isinstance(weight, Tensor)
        return Head(weight, bias, self.temperature, self.precision)


class TokenValue(Value):
    """A linear head, initially zero, on the hidden states of the actor or of a separate transformer."""

    def __init__(self, hidden_size: int, trunk: Trunk | None = None) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Any) -> Float[Tensor, "R T"]:
        """Values of hidden states (R, T, H), or of `Tokens` with a separate transformer."""
        hidden = features if self.trunk is None else self.trunk(features)
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)


class LanguageModel(ActorCritic):
    """Actor and critic over rows of `Tokens`.

    The actor may be any Hugging Face causal language model whose logits are its output embedding applied to its last
    hidden states, as in GPT-2, Llama and most others.

    Args:
        actor: the language model, in float32 or float64. With a PEFT adapter only the adapter is trained.
        critic: a separate transformer for the value; None puts the value head on the actor's hidden states.
        temperature: divides the logits, in sampling and in log-probabilities alike.
        precision: dtype of matrix products; None for that of the parameters.
        micro_batch_tokens: tokens of a micro-batch; None for any number.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.

    Raises:
        ConfigError: the actor's architecture is not supported, or trained parameters are in half precision.
    """

    context = 0
    trunk: Trunk
    policy: TokenHead
    value: TokenValue

    def __init__(
        self,
        actor: Any,
        critic: nn.Module | None = None,
        temperature: float = 1.0,
        precision: torch.dtype | None = None,
        micro_batch_tokens: int | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        require(temperature > 0, f"temperature must be above 0, got {temperature}")
        for transformer in (actor, *([] if critic is None else [critic])):
            without_dropout(transformer.eval())
            trained = (p for p in transformer.parameters() if p.requires_grad)
            check_precision(trained, f"the given {type(transformer).__name__}")
        head = actor.get_output_embeddings()
        require(head is not None, f"{type(actor).__name__} has no output embedding: it is no causal language model")
        own = {id(head.weight), id(getattr(head, "bias", None))}
        further = any(p.requires_grad and id(p) not in own for p in head.parameters())
        adapted = further and hasattr(actor, "peft_config")
        require(not adapted, "an adapter of the output embedding is not supported: leave it out of target_modules")
        check_adapter(actor)
        trunk = Trunk(causal_lm(actor).base_model, precision, gradient_checkpointing)
        separate = None if critic is None else Trunk(critic, precision, gradient_checkpointing)
        embedding: Any = head if critic is None else cast(Any, critic).get_input_embeddings()
        value = TokenValue(int(embedding.weight.shape[1]), separate)
        value.to(torch.promote_types(head.weight.dtype, torch.float32))
        super().__init__(TokenHead(head, temperature, precision), value, trunk)
        self.micro_batch_steps = micro_batch_tokens
        self._actor = (actor,)  # in a tuple, so that its parameters are not registered a second time
        self._check()

    @property
    def actor(self) -> Any:
        """The Hugging Face model that is trained, or the PEFT model around it."""
        return self._actor[0]

    @torch.no_grad()
    def _check(self) -> None:
        """Raises `ConfigError` unless hidden states, head and cache give the model's own logits, also after padding."""
        lm = causal_lm(self.actor)
        name, device = type(lm).__name__, next(self.parameters()).device
        token = torch.arange(2, device=device).unsqueeze(0)
        seen = torch.ones_like(token)
        logits = lm(token, attention_mask=seen, use_cache=False).logits[0]
        fault = f"{name} gives logits that are not finite: its weights are damaged, or too large for {logits.dtype}"
        require(bool(logits.isfinite().all()), fault)
        with self.policy.head.register_forward_hook(lambda *x: _LARGE * x[-1]):
            large = lm(token, attention_mask=seen, use_cache=False).logits[0] / _LARGE
        plain, head = Trunk(self.trunk.base), self.policy.functional._replace(temperature=1.0, precision=None)
        states: Any = getattr(plain.run(token, seen.bool()), "last_hidden_state", None)
        fault = f"{name} is not supported: its logits are more than an output embedding of its hidden states"
        for own in (logits, large):
            require(states is not None and equal_but_for_rounding(head(states[0]), at_least_single(own)), fault)
        hidden = states[0]
        fault, cache = f"{name} is not supported: it cannot continue from a key-value cache", plain.new_cache()
        try:
            for t in (1, 2):
                step = plain.run(token[:, t - 1 : t], seen[:, :t].bool(), cache).last_hidden_state[0, -1]
        except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
            raise ConfigError(fault) from error
        require(equal_but_for_rounding(step, hidden[-1]), fault)
        left = torch.tensor([[False, True, True]], device=device)
        padded = plain.run(torch.cat([token[:, :1], token], 1), left).last_hidden_state[0, 1:]
        fault = f"{name} is not supported: padding before a text changes its positions"
        # In double precision, eager attention gives NaN where nothing is to be seen.
        require(hidden.dtype == torch.float64 or equal_but_for_rounding(padded, hidden), fault)

    @property
    def share_that_stays(self) -> float:
        """Share of the rows that still act up to which the others, which have ended, leave the memory of `act`."""
        return 0.0

    def train(self, mode: bool = True) -> LanguageModel:
        """Stays in evaluation mode: dropout is off in sampling and in training alike."""
        return super().train(False)

    def forward(self, tokens: Tokens) -> tuple[TokenDistribution, Float[Tensor, "R T"]]:
        """π(·|s) and V(s) at the acting steps of (R, T)."""
        hidden = self.trunk(tokens)
        value = self.value(hidden if self.value.trunk is None else tokens)
        return self.policy(hidden, tokens), value * tokens.acts

    def distribution(self, tokens: Tokens) -> TokenDistribution:
        return self.policy(self.trunk(tokens), tokens)

    def value_features(self, tokens: Tokens) -> Tensor | Tokens:
        return self.trunk(tokens) if self.value.trunk is None else tokens

    def act(self, tokens: Tokens, memory: Memory | None = None) -> tuple[Categorical, Memory]:
        """π(·|s) (N,) after T more tokens, which may be on the host. T is the prompt's length at first, and then 1."""
        hidden, memory = self.read(tokens, memory)
        policy = Categorical(self.policy.logits(hidden))
        if tokens.allowed is not None:
            policy = policy.restrict(tokens.allowed[:, -1].to(policy.logits.device, non_blocking=True))
        return policy, memory

    def read(self, tokens: Tokens, memory: Memory | None) -> tuple[Float[Tensor, "N H"], Memory]:
        """The last hidden state of each row, after T more tokens."""
        cache = self.trunk.new_cache() if memory is None else memory.cache
        attention = tokens.attention if memory is None else torch.cat([memory.attention, tokens.attention], 1)
        out = self.trunk.run(tokens.token, attention, cache)
        return out.last_hidden_state[:, -1], Memory(cache, attention)

    def policy_parameters(self) -> list[nn.Parameter]:
        """The trained parameters that π depends on. An embedding tied to the head counts once."""
        return [p for p in super().policy_parameters() if p.requires_grad]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The trained parameters, each once. The others do not change."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Restores a `state_dict`. Raises `RuntimeError` if it belongs to another kind of model."""
        mine = self.state_dict()
        if mine.keys() != state_dict.keys() or any(p.shape != state_dict[name].shape for name, p in mine.items()):
            raise RuntimeError("the parameters have other names or shapes")
        for name, p in mine.items():
            p.copy_(state_dict[name])

    def save_pretrained(
        self, tokenizer: PreTrainedTokenizerBase, folder: Path | str, stops: Collection[int] = ()
    ) -> None:
        """Saves the actor as a Hugging Face model, with an adapter merged into its weights (see `save`)."""
        save(merge_adapter(self.actor), tokenizer, folder, stops)


def check_adapter(actor: Any) -> None:
    """Raises `ConfigError` unless the adapter of a PEFT model, merged into its weights, would compute the same."""
    if hasattr(actor, "peft_config"):
        fault = "is not supported: use LoRA, or another method whose adapter becomes part of the weights"
        require(hasattr(actor, "merge_and_unload"), f"{actor.active_peft_config.peft_type.value} of PEFT {fault}")
        head, embedding = actor.get_output_embeddings(), actor.get_input_embeddings()
        first, last = ({id(p) for p in module.parameters()} for module in (embedding, head))
        fault = "an adapter of an embedding that is tied to another one is not supported: leave it out of its settings"
        require(not first & last or first == {id(head.weight)}, fault)


def merge_adapter(model: Any) -> Any:
    """A Hugging Face model; of a PEFT model, a copy with the adapter merged into its weights.

    Raises:
        ConfigError: the merged model would be another one.
    """
    check_adapter(model)
    return copy.deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model


def without_adapter(model: Any) -> Any:
    """A Hugging Face model; of a PEFT model, a copy without the adapter."""
    return copy.deepcopy(model).unload() if hasattr(model, "unload") else model


def with_adapter(actor: Any, rank: int, seed: int) -> Any:
    """The actor with a LoRA adapter (Hu et al. 2021) on its linear layers. Only the adapter is trained."""
    peft = optional_module("peft", "lora_rank needs the packages of rlzoo[peft]")
    with single_precision(), torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(seed % 2**64)  # a run may have a larger one
        # The routers of PhiMoE and Llama 4 return two tensors, the groups of DeepSeek-V4 one of another width.
        special = [name for name, m in actor.named_modules() if type(m).__name__.endswith(("Router", "GroupedLinear"))]
        settings = {"target_modules": "all-linear", "exclude_modules": special, "task_type": "CAUSAL_LM"}
        try:
            return peft.get_peft_model(actor, peft.LoraConfig(r=rank, lora_alpha=2 * rank, **settings))
        except ValueError as error:
            LanguageModel(actor)  # the error for an architecture that is not supported without an adapter either
            fault = f"lora_rank: PEFT has no adapter for {type(actor).__name__}: {first_line(error)}"
            raise ConfigError(f"{fault}; leave out lora_rank to train all parameters") from error


class Memory(NamedTuple):
    """The key-value cache, and which of its columns are tokens. The cache changes in place."""

    cache: Cache
    attention: Bool[Tensor, "N C"]

    def rows(self, rows: Int[Tensor, "R"]) -> Memory:
        """The memory of these rows, which may be repeated, in its place."""
        layer: Any = self.cache.layers[0]
        self.cache.batch_select_indices(rows.to(layer.keys.device, non_blocking=True))
        return Memory(self.cache, self.attention[rows])


def causal_lm(actor: Any) -> Any:
    """The Hugging Face language model of an actor, without the PEFT wrapper."""
    return actor.get_base_model() if hasattr(actor, "get_base_model") else actor


class Reference:
    """The reference policy π_ref: a frozen copy of the actor, or the actor without its adapter.

    Raises:
        ConfigError: more than the adapter is trained, so that the actor without it changes.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._adapted = model if hasattr(model.actor, "disable_adapter") else None
        if self._adapted is not None:
            with _adapter_off(model):
                other = next((name for name, p in model.actor.named_parameters() if p.requires_grad), None)
            fault = "is trained, but is no part of the adapter, without which the model is the reference: freeze it"
            require(other is None, f"{other} {fault}")
        else:
            self.trunk, self.head = copy.deepcopy((model.trunk, model.policy))  # together: their embedding may be tied
            for module in (self.trunk, self.head):
                module.requires_grad_(False)

    @property
    def is_copy(self) -> bool:
        """Whether it has weights of its own."""
        return self._adapted is None

    @torch.no_grad()
    def distribution(self, tokens: Tokens) -> TokenDistribution:
        """π_ref(·|s) at the acting steps of (R, T)."""
        if self._adapted is not None:
            with _adapter_off(self._adapted):
                return self._adapted.distribution(tokens)
        return self.head(self.trunk(tokens), tokens)


@contextlib.contextmanager
def _adapter_off(model: LanguageModel) -> Iterator[None]:
    """Context in which the actor computes without its adapter."""
    trains = [(p, p.requires_grad) for p in model.parameters()]
    try:
        with model.actor.disable_adapter():
            yield
    finally:
        for p, does in trains:  # PEFT lets the whole adapter train afterwards
            p.requires_grad_(does)
