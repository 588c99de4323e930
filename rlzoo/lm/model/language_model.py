"""Causal language models as actor-critics: the state is a token and all before it, the action is the next token."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from rlzoo.core.distributions import Categorical
from rlzoo.core.errors import ConfigError, require
from rlzoo.core.models import ActorCritic, Policy, Value
from rlzoo.lm.model.attention import new_cache, use_fastest_attention
from rlzoo.lm.model.padding import pad, position_ids
from rlzoo.lm.model.pretrained import without_dropout
from rlzoo.lm.model.saving import save
from rlzoo.lm.model.tokens import TokenDistribution
from rlzoo.lm.model.vocabulary import Head, autocast, restricted
from rlzoo.lm.model.weights import Casts, use_faster_layers

_NO_GRAD_TOKENS = 4096
"""Tokens of a micro-batch in forwards without gradient."""


class Rows(NamedTuple):
    """The first three parts of an observation (R, T, O). Further ones are the bits of the allowed tokens."""

    token: Int[Tensor, "R T"]
    attention: Bool[Tensor, "R T"]
    """False at padding."""
    acts: Bool[Tensor, "R T"]
    """True where the next token is an action, or a target of the pretraining loss."""

    @classmethod
    def of(cls, obs: Int[Tensor, "R T O"]) -> Rows:
        return cls(obs[..., 0], obs[..., 1].bool(), obs[..., 2].bool())

    @staticmethod
    def allowed(obs: Int[Tensor, "R T O"]) -> Int[Tensor, "R T W"] | None:
        """Bits of the allowed tokens (see `words_of`); None if all are allowed."""
        return obs[..., 3:] if obs.shape[-1] > 3 else None

    @classmethod
    def of_texts(cls, texts: Sequence[Sequence[int]], pad_token: int) -> Rows:
        """Texts padded on the right, in which every token but the first is an action."""
        token, attention = pad(texts, pad_token, side="right")
        return cls(token, attention, nn.functional.pad(attention[:, 1:], (0, 1)))

    @property
    def obs(self) -> Int[Tensor, "R T 3"]:
        return torch.stack([self.token, self.attention.long(), self.acts.long()], -1)

    @property
    def action(self) -> Int[Tensor, "R T"]:
        """The next token at each step; 0 in the last column."""
        return nn.functional.pad(self.token[:, 1:], (0, 1))


class Trunk(nn.Module):
    """A transformer without its head: obs (R, T, O) -> hidden states (R, T, H), 0 at steps that do not act."""

    def __init__(self, base: Any, precision: torch.dtype | None = None, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.base: Any = base
        self.precision = precision
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        base.warn_if_padding_and_no_attention_mask = _trust  # it would look at every token
        self._takes_positions = "position_ids" in inspect.signature(base.forward).parameters
        # with checkpointing, weights are used again in the backward pass, and each forward casts them
        self._casts = None if precision is None or gradient_checkpointing else Casts(base, precision)

    def forward(self, obs: Int[Tensor, "R T O"]) -> Float[Tensor, "R T H"]:
        rows = max(1, _NO_GRAD_TOKENS // obs.shape[1])
        if torch.is_grad_enabled() or rows >= len(obs):
            return self._states(Rows.of(obs))
        return torch.cat([self._states(Rows.of(batch)) for batch in torch.split(obs, rows)])

    def _states(self, rows: Rows) -> Float[Tensor, "R T H"]:
        """Leaves out the columns before the first token of any row and after the last acting step."""
        columns = torch.stack([rows.attention.any(0), rows.attention.all(0), rows.acts.any(0)])
        started, full, acting = columns.cpu().numpy()  # the only time that the host waits for the device
        first = int(started.argmax())
        last = max(len(acting) - int(acting[::-1].argmax()), first + 1) if acting.any() else first + 1
        token, attention = rows.token[:, first:last], rows.attention[:, first:last]
        hidden = self.run(token, attention, padded=not full[first:last].all(), use_cache=False).last_hidden_state
        hidden = hidden.masked_fill(~rows.acts[:, first:last].unsqueeze(-1), 0)
        return nn.functional.pad(hidden, (0, 0, first, len(acting) - last))

    def run(self, token: Int[Tensor, "R T"], attention: Bool[Tensor, "R C"], padded: bool = True, **more: Any) -> Any:
        """The transformer's output for the last T of C tokens. The others are in a cache.

        Args:
            padded: whether a column is padding in any row. Without padding there is no mask, which is faster.
        """
        if self._takes_positions:
            more["position_ids"] = position_ids(attention)[:, -token.shape[1] :]
        if self.gradient_checkpointing:  # works in training mode only, where Hugging Face turns the cache off
            self.base.train(torch.is_grad_enabled())
        with autocast(token.device, self.precision):
            given = {"input_ids": token, "attention_mask": attention.long() if padded else None, **more}
            casts = {} if self._casts is None else self._casts.weights()
            return torch.func.functional_call(self.base, casts, kwargs=given) if casts else self.base(**given)


def _trust(*_: object) -> None:
    """Instead of Hugging Face's check that tokens without a mask are no padding."""


class TokenHead(Policy):
    """The output embedding of a language model, whose logits are divided by the temperature."""

    def __init__(self, head: nn.Module, temperature: float = 1.0, precision: torch.dtype | None = None) -> None:
        super().__init__()
        self.head = head
        self.temperature = temperature
        self.precision = precision

    def forward(self, hidden: Tensor, obs: Tensor) -> TokenDistribution:  # type: ignore[override]
        return TokenDistribution(hidden, Rows.of(obs).acts, self.functional, Rows.allowed(obs))

    def logits(self, hidden: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Logits computed by the module itself, for which acting uses packed weights."""
        with autocast(hidden.device, self.precision):
            logits = self.head(hidden)
        return (logits if logits.dtype == torch.float64 else logits.float()) / self.temperature

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

    def forward(self, features: Tensor) -> Float[Tensor, "R T"]:
        """Values of hidden states (R, T, H), or of observations (R, T, O) with a separate transformer."""
        hidden = features if self.trunk is None else self.trunk(features)
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)


class LanguageModel(ActorCritic):
    """Actor and critic over rows of tokens, observed as integers (R, T, O) (see `Rows`).

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
        ConfigError: the actor's architecture is not supported.
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
        for transformer in (actor, *([] if critic is None else [critic])):
            without_dropout(transformer.eval())
            use_faster_layers(transformer)
            use_fastest_attention(transformer)
        head = actor.get_output_embeddings()
        require(head is not None, f"{type(actor).__name__} has no output embedding: it is no causal language model")
        trunk = Trunk(causal_lm(actor).base_model, precision, gradient_checkpointing)
        separate = None if critic is None else Trunk(critic, precision, gradient_checkpointing)
        value = TokenValue(int(head.weight.shape[1]), separate)
        super().__init__(TokenHead(head, temperature, precision), value.to(head.weight.dtype), trunk)
        self.part_steps = micro_batch_tokens
        self._actor = (actor,)  # in a tuple, so that its parameters are not registered a second time
        self._check()

    @property
    def actor(self) -> Any:
        """The Hugging Face model that is trained, or the PEFT model around it."""
        return self._actor[0]

    @torch.no_grad()
    def _check(self) -> None:
        """Raises `ConfigError` unless hidden states, output embedding and cache reproduce the model's own logits."""
        name = type(causal_lm(self.actor)).__name__
        token = torch.arange(2, device=next(self.parameters()).device).unsqueeze(0)
        seen = Rows(token, torch.ones_like(token).bool(), torch.ones_like(token).bool()).obs
        logits = causal_lm(self.actor)(token, attention_mask=torch.ones_like(token)).logits
        hidden = self.trunk.run(token, seen[..., 1].bool(), padded=False, use_cache=False).last_hidden_state
        ours = self.policy.functional._replace(temperature=1.0, autocast=None)(hidden[0].to(logits.dtype))
        exact = self.trunk.precision is None
        require(
            not exact or torch.allclose(ours, logits[0], rtol=1e-5, atol=1e-6),
            f"{name} is not supported: its logits are more than an output embedding of its hidden states",
        )
        try:
            _, memory = LanguageModel.act(self, seen[:, :1])
            policy, _ = LanguageModel.act(self, seen[:, 1:], memory)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ConfigError(f"{name} is not supported: it cannot continue from a key-value cache") from error
        cached = policy.logits * self.policy.temperature
        require(
            not exact or torch.allclose(cached, logits[:, -1], rtol=1e-3, atol=1e-3),
            f"{name} is not supported: it cannot continue from a key-value cache",
        )

    def train(self, mode: bool = True) -> LanguageModel:
        """Stays in evaluation mode: dropout is off in sampling and in training alike."""
        return super().train(False)

    def forward(self, obs: Int[Tensor, "R T O"]) -> tuple[TokenDistribution, Float[Tensor, "R T"]]:
        """π(·|s) and V(s) at the acting steps of (R, T)."""
        hidden = self.trunk(obs)
        value = self.value(hidden if self.value.trunk is None else obs)
        return self.policy(hidden, obs), value * Rows.of(obs).acts

    def distribution(self, obs: Int[Tensor, "R T O"]) -> TokenDistribution:
        return self.policy(self.trunk(obs), obs)

    def value_features(self, obs: Int[Tensor, "R T O"]) -> Tensor:
        return self.trunk(obs) if self.value.trunk is None else obs

    def act(self, obs: Int[Tensor, "N T O"], memory: Memory | None = None) -> tuple[Categorical, Memory]:
        """π(·|s) (N,) after T more tokens. T is the length of the prompt at first, and then 1.

        Args:
            obs: may be on the host, which then finds padding in it without waiting for the device.
        """
        padded = not bool(Rows.of(obs).attention.all())
        obs = obs.to(next(self.parameters()).device, non_blocking=True)
        rows = Rows.of(obs)
        if memory is None:
            memory = Memory(new_cache(self.trunk.base), rows.attention, padded)
        else:
            attention = torch.cat([memory.attention, rows.attention], 1)
            memory = Memory(memory.cache, attention, padded or memory.padded)
        cached = {"use_cache": True, "past_key_values": memory.cache}
        out = self.trunk.run(rows.token, memory.attention, memory.padded, **cached)
        logits, allowed = self.policy.logits(out.last_hidden_state[:, -1]), Rows.allowed(obs)
        return Categorical(logits if allowed is None else restricted(logits, allowed[:, -1])), memory

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Context in which the adapter is off."""
        with self.actor.disable_adapter():
            yield

    def policy_parameters(self) -> list[nn.Parameter]:
        """The trained parameters that π depends on. An embedding tied to the head counts once."""
        parameters = dict.fromkeys([*self.trunk.parameters(), *self.policy.parameters()])
        return [p for p in parameters if p.requires_grad]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The trained parameters, each once. The others do not change."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Restores a `state_dict`.

        Raises:
            RuntimeError: it belongs to another kind of model.
        """
        mine = self.state_dict()
        if mine.keys() != state_dict.keys() or any(p.shape != state_dict[name].shape for name, p in mine.items()):
            raise RuntimeError("the parameters have other names or shapes")
        for name, p in mine.items():
            p.copy_(state_dict[name])

    def save_pretrained(
        self, tokenizer: PreTrainedTokenizerBase, folder: Path | str, stops: Collection[int] = ()
    ) -> None:
        """Saves the actor as a Hugging Face model, with an adapter merged into its weights (see `save`)."""
        save(merged(self.actor), tokenizer, folder, stops)


def merged(model: Any) -> Any:
    """A Hugging Face model; of a PEFT model, a copy with the adapter merged into its weights."""
    return copy.deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model


def with_adapter(actor: Any, rank: int, seed: int) -> Any:
    """The actor with a LoRA adapter (Hu et al. 2021) on its linear layers. Only the adapter is trained.

    Raises:
        ConfigError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("lora_rank needs the packages of rlzoo[peft]") from error
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(seed)
        adapter = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        return get_peft_model(actor, adapter)


class Memory(NamedTuple):
    """The key-value cache, and which of its columns are tokens."""

    cache: Cache
    attention: Bool[Tensor, "N C"]
    padded: bool
    """Whether not all are."""


def causal_lm(actor: Any) -> Any:
    """The Hugging Face language model of an actor, without the PEFT wrapper."""
    return actor.get_base_model() if hasattr(actor, "get_base_model") else actor


class Reference:
    """The reference policy π_ref: a frozen copy of the actor, or the actor without its adapter."""

    def __init__(self, model: LanguageModel) -> None:
        self._adapted = model if hasattr(model.actor, "disable_adapter") else None
        if self._adapted is None:
            actor, precision = copy.deepcopy(model.actor).requires_grad_(False), model.trunk.precision
            head = actor.get_output_embeddings()
            if precision is not None:  # saves the casts of autocast in every forward
                head = copy.deepcopy(head)
                for module in (*actor.base_model.modules(), head):
                    if isinstance(module, (nn.Linear, Conv1D)):
                        module.to(precision)
            self._trunk = Trunk(actor.base_model, precision)
            self._head = TokenHead(head, model.policy.temperature, precision)

    @torch.no_grad()
    def distribution(self, obs: Int[Tensor, "R T O"]) -> TokenDistribution:
        """π_ref(·|s) at the acting steps of (R, T)."""
        if self._adapted is not None:
            with self._adapted.without_adapter():
                return self._adapted.distribution(obs)
        return self._head(self._trunk(obs), obs)
