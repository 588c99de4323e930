"""A language model as actor and critic: shift, padding, ratio, temperature, adapters, derivatives."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from lm_builders import (
    KINDS,
    LETTERS,
    experience,
    make_actor,
    make_buffer,
    make_env,
    make_model,
    make_rows,
    make_small,
    move,
    single,
)
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tiny import PAD, make_lm, make_tokenizer
from torch.autograd import forward_ad
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    MarianConfig,
    OPTConfig,
    OPTForCausalLM,
)

from rlzoo.algorithms import NPG, TRPO, PPOClip, PPOPenalty, Reinforce, measure
from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.fast.model import accelerate_model
from rlzoo.lm.model import language_model as lm_model
from rlzoo.lm.model.language_model import LanguageModel, Reference, Trunk, merge_adapter, with_adapter
from rlzoo.lm.model.pretrained import load_causal_lm, new_causal_lm
from rlzoo.lm.model.saving import save
from rlzoo.lm.model.tokens import Tokens
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy
from rlzoo.runs.configuration.config import make_config

SIZES = [(2, 3), (5, 1), (1, 6), (3, 4)]
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
ALGORITHMS = {
    "reinforce": Reinforce(vf_epochs=2, vf_minibatch_size=2),
    "npg": NPG(vf_epochs=2, vf_minibatch_size=2, cg_iters=2),
    "trpo": TRPO(vf_epochs=2, vf_minibatch_size=2, cg_iters=2),
    "ppo-penalty": PPOPenalty(epochs=2, minibatch_size=2),
    "ppo-clip": PPOClip(epochs=2, minibatch_size=2),
}

OTHERS = {
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "phi": {},
    "gemma": {},
    "stablelm": {},
    "olmo": {},
    "starcoder2": {},
    "biogpt": {},
    "phi3": {"pad_token_id": 0},
    "smollm3": {"pad_token_id": 0},
    "mistral, sliding window": {"sliding_window": 3},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "gpt_bigcode": {},
    "bloom": {},
    "gpt_neo": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 3},
    "gptj": {"rotary_dim": 8},
    "falcon": {},
    "mpt": {"n_layers": 2, "d_model": 32, "n_heads": 2},
    "mixtral": {"num_local_experts": 2},
}
SHAPE = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 32, "initializer_range": 0.2,
}  # fmt: skip


DECODERS = {"bart": BartConfig, "marian": MarianConfig}
DECODER = {
    "vocab_size": PAD + 1, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 48,
    "max_position_embeddings": 32, "pad_token_id": PAD, "init_std": 0.2, "is_decoder": True, "scale_embedding": False,
}  # fmt: skip


def other_actor(name, attention="eager"):
    shape = {**SHAPE, "head_dim": 16} if name in ("qwen3", "gemma", "gemma2") else SHAPE
    return new_causal_lm({"model_type": name.split(",")[0], **shape, **OTHERS.get(name, {})}, PAD + 1, 0, attention)


def make_bigram(transitions):
    """GPT-2 whose logits are log P[current token, ·], and whose hidden states depend on nothing else."""
    size = len(transitions)
    actor = make_actor(vocabulary=size, n_layer=1, n_embd=size, n_head=1, tie_word_embeddings=False).double()
    body = actor.transformer
    with torch.no_grad():
        for p in actor.parameters():
            p.zero_()
        body.wte.weight.copy_(torch.eye(size))
        body.ln_f.weight.fill_(1)
        body.ln_f.bias.fill_(1)
        hidden = body(torch.arange(size).unsqueeze(1)).last_hidden_state[:, 0]
        actor.lm_head.weight.copy_(torch.linalg.solve(hidden, transitions.log()).t())
    return LanguageModel(actor)


def distributed(model, rows):
    """Log-probabilities, entropies and values of the acting steps."""
    policy, value = model(rows)
    logp = policy.log_prob(torch.nn.functional.pad(rows.token[:, 1:], (0, 1)))
    return torch.stack([logp, policy.entropy(), value], -1)[rows.acts]


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradient_of(loss, model, batch, *scalars):
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(model, batch, *scalars), trained(model))])


TRANSITIONS = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [0.7, 0.05, 0.15, 0.1]]
).double()


def test_a_step_scores_the_token_after_it():
    """2 → 0 → 3 → 1 → 1 after a prompt of one token, by a bigram model of known matrix, with padding on both sides."""
    token = torch.tensor([[2, 0, 3, 1, 1], [3, 3, 2, 0, 3]])
    attention = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0]]).bool()
    acts = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 0, 0]]).bool()
    buffer = make_buffer(make_bigram(TRANSITIONS), Tokens(token, attention, acts))
    assert buffer.action.tolist() == [[0, 3, 1, 1], [3, 2, 0, 3]]
    expected = [[0.25, 0.4, 0.05, 0.3], [1, 1, 0.25, 1]]  # 1 where nothing acts: log-probabilities are 0 there
    torch.testing.assert_close(buffer.logp.exp(), torch.tensor(expected).double(), rtol=0, atol=1e-6)


@ALL_KINDS
@pytest.mark.parametrize("critic", [False, True])
def test_the_last_token_changes_nothing_before_it(kind, critic):
    model = make_model(kind, critic=critic)
    rows = make_rows([(2, 6)])
    other = dataclasses.replace(rows, token=rows.token.clone())
    other.token[0, -1] = (rows.token[0, -1] + 1) % LETTERS

    def outcome(rows):
        policy, value = model(rows)
        return policy.map(lambda x: x[:, :-1]).log_prob(rows.token[:, 1:])[0], value[0]

    (logp, value), (other_logp, other_value) = outcome(rows), outcome(other)
    assert torch.equal(logp[:-1], other_logp[:-1])
    assert torch.equal(value[:-1], other_value[:-1])
    assert logp[-1] != other_logp[-1]
    assert value[2:-1].all()


@ALL_KINDS
@pytest.mark.parametrize("critic", [False, True])
def test_a_row_alone_equals_the_same_row_padded_on_either_side(kind, critic):
    model = make_model(kind, critic=critic)
    layouts = [make_rows(SIZES, layout, 2, 1) for layout in ("generated", "left", "right")]
    with torch.no_grad():
        alone = torch.cat([distributed(model, single(layouts[0], i)) for i in range(len(SIZES))])
        for rows in layouts:
            torch.testing.assert_close(distributed(model, rows), alone, rtol=0, atol=1e-5)


@ALL_KINDS
def test_what_padding_holds_changes_nothing(kind):
    model = make_model(kind)
    clean, junk = make_rows(SIZES, before=1, after=2), make_rows(SIZES, before=1, after=2, padding=3)
    assert not torch.equal(clean.token, junk.token)
    assert torch.equal(distributed(model, clean), distributed(model, junk))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_place_and_score_tokens_alike(name):
    actor = other_actor(name)
    model = move(LanguageModel(actor), spread=0.01)
    layouts = [make_rows(SIZES, layout, 1, 2) for layout in ("generated", "left", "right")]
    with torch.no_grad():
        alone = torch.cat([distributed(model, single(layouts[0], i)) for i in range(len(SIZES))])
        for rows in layouts:
            torch.testing.assert_close(distributed(model, rows), alone, rtol=0, atol=1e-5)
        row = single(layouts[0], 0)
        expected = actor(row.token).logits.log_softmax(-1)[:, :-1].gather(-1, row.token[:, 1:, None])[..., 0]
        torch.testing.assert_close(distributed(model, row)[:, 0], expected[row.acts[:, :-1]], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_score_alike_with_the_fast_path(name):
    """With the attention that a run chooses, fused where the architecture has it."""
    plain, fast = (move(LanguageModel(other_actor(name, "auto")), spread=0.01) for _ in range(2))
    accelerate_model(fast)
    for layout in ("generated", "left", "right"):
        rows = make_rows(SIZES, layout, 1, 2)
        torch.testing.assert_close(distributed(fast, rows), distributed(plain, rows), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_decoder_whose_positions_count_padding_is_refused(name):
    """A row with padding before its prompt would score its tokens otherwise than alone."""
    with pytest.raises(ConfigError, match="padding before a text changes its positions"):
        LanguageModel(AutoModelForCausalLM.from_config(DECODERS[name](**DECODER)))


def test_a_critic_of_another_size_has_a_head_and_a_room_of_its_own():
    critic = make_actor(n_embd=16, n_positions=12).base_model
    model = LanguageModel(make_actor(), critic)
    rows = make_rows(SIZES, "generated", 1, 2)
    assert model(rows)[1].isfinite().all()
    with pytest.raises(ConfigError, match="there is room for 8"):
        make_env(model, prompts=("abcdefghi",), max_new_tokens=4)


@pytest.mark.parametrize("name", ["mamba", "rwkv"])
def test_an_architecture_without_a_cache_of_keys_and_values_is_refused(name):
    """Its later tokens would be drawn as if there were no prompt."""
    for make in (LanguageModel, lambda actor: with_adapter(actor, 2, seed=0)):  # PEFT refuses Mamba
        with pytest.raises(ConfigError, match="is not supported: it cannot continue from a key-value cache"):
            LanguageModel(make(other_actor(name)))


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), 1e38])
def test_weights_that_give_no_finite_logits_are_named(fault):
    actor = make_actor("llama")
    torch.nn.init.constant_(actor.get_output_embeddings().weight, fault)
    fault = (
        "^LlamaForCausalLM gives logits that are not finite: its weights are damaged, or too large for torch.float32$"
    )
    with pytest.raises(ConfigError, match=fault):
        LanguageModel(actor)


def test_a_model_that_reads_nothing_further_is_refused(monkeypatch):
    """As CPM-Ant does from a cache: there is no last hidden state."""
    actor = make_actor()
    run = Trunk.run

    def short(self, token, attention, cache=None, **more):
        out = run(self, token, attention, cache, **more)
        if cache is not None:
            out.last_hidden_state = out.last_hidden_state[:, :0]
        return out

    monkeypatch.setattr(Trunk, "run", short)
    with pytest.raises(ConfigError, match="is not supported: it cannot continue from a key-value cache"):
        LanguageModel(actor)


def test_a_head_with_further_parameters_is_no_adapter():
    class Scaled(torch.nn.Linear):
        def __init__(self, weight):
            super().__init__(*reversed(weight.shape), bias=False)
            self.weight, self.scale = weight, torch.nn.Parameter(torch.full((len(weight),), 2.0))

        def forward(self, hidden):
            return super().forward(hidden) * self.scale

    actor = make_actor("llama")
    actor.set_output_embeddings(Scaled(actor.get_output_embeddings().weight))
    with pytest.raises(ConfigError, match="its logits are more than an output embedding of its hidden states"):
        LanguageModel(actor)


def test_a_model_without_layers_to_adapt_is_named():
    with pytest.raises(ConfigError, match=r"^lora_rank: PEFT has no adapter for GPT2LMHeadModel: .*; leave out lora_"):
        with_adapter(make_actor(n_layer=0), 2, seed=0)


@pytest.mark.parametrize("name", ["cohere", "gemma2", "llama4_text"])
def test_an_architecture_that_does_more_to_its_logits_is_refused(name):
    with pytest.raises(ConfigError, match="its logits are more than an output embedding of its hidden states"):
        LanguageModel(other_actor(name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision_are_refused(dtype):
    """In which transformers loads many checkpoints. Those that an adapter leaves alone may be."""
    for models in ([make_actor().to(dtype)], [make_actor(), make_actor().base_model.to(dtype)]):
        with pytest.raises(ConfigError, match=r"is in torch\..*: training needs float32, such as model.float\(\)"):
            LanguageModel(*models)
    adapted = LanguageModel(with_adapter(make_actor("llama").to(torch.bfloat16), 2, seed=0))
    assert {p.dtype for p in trained(adapted)} == {torch.float32}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about what PEFT calls
def test_an_adapter_of_the_output_embedding_is_refused():
    """Training would see the embedding alone, and sampling the adapter too."""
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    with pytest.raises(ConfigError, match="an adapter of the output embedding is not supported"):
        LanguageModel(get_peft_model(make_actor("llama"), config))
    whole = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    model = move(LanguageModel(get_peft_model(make_actor("llama", tie_word_embeddings=False), whole)))
    rows = single(make_rows(SIZES), 0)
    expected = model.actor(rows.token).logits[rows.acts].log_softmax(-1)
    torch.testing.assert_close(model.distribution(rows).at_steps.log_probs, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of PEFT, about tied embeddings
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoraConfig(r=2, target_modules=["wte"], fan_in_fan_out=True), "an embedding that is tied to another one"),
        (LoraConfig(r=2, target_modules=["c_attn"], modules_to_save=["wte"]), "an embedding that is tied to another"),
        (LoraConfig(r=2, target_modules=["c_attn"], modules_to_save=["lm_head"]), "an embedding that is tied to"),
        (PromptTuningConfig(num_virtual_tokens=2), "PROMPT_TUNING of PEFT is not supported: use LoRA"),
    ],
)
def test_adapters_that_would_be_others_in_the_weights_are_refused(config, message):
    """An adapter of a shared weight, merged, changes the other embedding too; virtual tokens are no weight."""
    config.task_type = "CAUSAL_LM"
    adapted = get_peft_model(make_actor("gpt2"), config)
    for use in (LanguageModel, merge_adapter):
        with pytest.raises(ConfigError, match=message):
            use(adapted)


@pytest.mark.filterwarnings("ignore")  # of PEFT, about the layout of GPT-2's weights
def test_a_reference_that_training_would_change_is_refused():
    adapted = get_peft_model(make_actor("gpt2"), LoraConfig(r=2, target_modules=["c_attn"], bias="all"))
    model = LanguageModel(adapted)
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    with pytest.raises(ConfigError, match=r"h\.0\.ln_1\.bias is trained, but is no part of the adapter"):
        Reference(model)
    assert [name for name, p in adapted.named_parameters() if p.requires_grad] == trained


def test_a_soft_cap_is_refused_where_the_logits_do_not_reach_it():
    config = {"model_type": "gemma2", **SHAPE, "head_dim": 16, "initializer_range": 0.002}
    with pytest.raises(ConfigError, match="its logits are more than an output embedding of its hidden states"):
        LanguageModel(new_causal_lm(config, PAD + 1))


def scaled(kind, size, dtype=torch.float32):
    """A model of random weights whose logits are about `size`, as pretrained ones have them."""
    actor = other_actor(kind) if kind in OTHERS else make_actor(kind, tie_word_embeddings=False)
    actor = actor.to(dtype)
    with torch.no_grad():
        actor.get_input_embeddings().weight.mul_(10)
        head = actor.get_output_embeddings().weight
        head.mul_(size / actor(torch.arange(2).unsqueeze(0)).logits.norm(dim=-1).mean() * len(head) ** 0.5)
    return actor


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("size", [1, 30, 1000])
@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float32, None), (torch.float64, None), (torch.float32, torch.bfloat16)]
)
def test_logits_of_any_size_are_supported(kind, size, dtype, precision):
    actor = scaled(kind, size, dtype)
    logits = actor(torch.arange(2).unsqueeze(0)).logits.detach()
    assert float(logits.square().mean().sqrt()) == pytest.approx(size, rel=0.5)
    LanguageModel(actor, precision=precision)


def cap(logits):
    return 30 * torch.tanh(logits / 30)


@pytest.mark.parametrize("change", [cap, lambda x: 1.01 * x, lambda x: x + torch.linspace(0, 1, x.shape[-1])])
@pytest.mark.parametrize("size", [1, 30])
def test_more_than_an_output_embedding_is_refused(change, size, monkeypatch):
    """A cap, a scale, a bias that only the model itself applies."""
    actor = scaled("llama", size)
    forward = type(actor).forward

    def changed(*args, **settings):
        out = forward(*args, **settings)
        out.logits = change(out.logits)
        return out

    monkeypatch.setattr(type(actor), "forward", changed)
    with pytest.raises(ConfigError, match="its logits are more than an output embedding of its hidden states"):
        LanguageModel(actor)


def test_a_cache_that_gives_other_states_is_refused(monkeypatch):
    actor = scaled("llama", 30)
    forward = type(actor.model).forward

    name = LanguageModel(actor).trunk._cache_name

    def forgetful(self, *args, **settings):
        if settings.get(name) is not None:
            settings[name] = type(settings[name])()
        return forward(self, *args, **settings)

    monkeypatch.setattr(type(actor.model), "forward", functools.wraps(forward)(forgetful))
    with pytest.raises(ConfigError, match="it cannot continue from a key-value cache"):
        LanguageModel(actor)


def test_a_model_without_an_output_embedding_is_refused():
    with pytest.raises(ConfigError, match="GPT2Model has no output embedding: it is no causal language model"):
        LanguageModel(GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=5)))


def test_rows_without_an_action_give_zeros():
    rows = make_rows(SIZES)
    model = make_model(critic=True)
    policy, value = model(dataclasses.replace(rows, acts=rows.acts & False))
    for x in (policy.log_prob(rows.token), policy.entropy(), value):
        assert torch.equal(x, torch.zeros(rows.token.shape))


@ALL_KINDS
def test_hidden_states_are_zero_where_nothing_acts(kind):
    rows = make_rows(SIZES, before=2, after=1)
    assert torch.equal((make_model(kind).trunk(rows) != 0).any(-1), rows.acts)


def test_without_gradients_a_few_rows_at_a_time_give_the_same(monkeypatch):
    model, rows = make_model(), make_rows(SIZES)
    with torch.no_grad():
        whole = distributed(model, rows)
        monkeypatch.setattr(lm_model, "_NO_GRAD_TOKENS", {"cpu": 2 * rows.token.shape[1]})
        torch.testing.assert_close(distributed(model, rows), whole, rtol=0, atol=1e-5)


def test_values_start_at_zero_and_a_critic_of_its_own_as_it_was():
    rows, critic = make_rows(SIZES), make_actor(seed=3).base_model
    before = torch.cat([p.detach().reshape(-1) for p in critic.parameters()])
    for model in (LanguageModel(make_actor()), LanguageModel(make_actor(), critic)):
        assert not model(rows)[1].any()
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in model.value.trunk.parameters()]), before)
    assert {id(p) for p in model.policy_parameters()}.isdisjoint(id(p) for p in model.value_parameters())
    everything = {id(p) for p in [*model.policy_parameters(), *model.value_parameters()]}
    assert everything == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("critic", [False, True])
def test_values_can_be_had_from_what_does_not_depend_on_their_parameters(critic):
    model, rows = make_model(critic=critic), make_rows(SIZES)
    features = model.value_features(rows)
    assert torch.equal(model.value(features)[rows.acts], model(rows)[1][rows.acts])
    move(model, model.value_parameters())
    if critic:
        assert features is rows
    else:
        assert torch.equal(model.value_features(rows), features)
        grads = torch.autograd.grad(features.sum(), model.value_parameters(), allow_unused=True)
        assert set(grads) == {None}


@ALL_KINDS
@pytest.mark.parametrize("name", ["reinforce", "ppo-penalty", "ppo-clip"])
def test_only_acting_steps_have_a_gradient(kind, name):
    """The gradient at the last hidden states is 0 exactly where nothing acts, whatever is stored there."""
    model, kept = make_model(kind), []

    def keep(*x):
        x[2].retain_grad()
        kept.append(x[2])

    rows = make_rows(SIZES, before=1, after=1)
    buffer = make_buffer(model, rows)
    batch = ALGORITHMS[name].estimator(buffer).rows(0)
    batch = batch.replace(
        advantage=torch.where(batch.mask, batch.advantage, 99.0), return_=torch.where(batch.mask, batch.return_, 99.0)
    )
    with torch.no_grad():
        batch = batch.replace(old=model.distribution(batch.obs).detach())
    model.trunk.register_forward_hook(keep)
    scalars = {"reinforce": (0.0,), "ppo-penalty": (0.5, 0.0), "ppo-clip": (0.2, 0.0)}[name]
    ALGORITHMS[name].loss(model, batch, *scalars).backward()
    assert torch.equal((kept[0].grad != 0).any(-1), rows.acts[:, :-1])
    if kind == "llama":  # whose input embedding is not the output's
        assert not model.trunk.base.embed_tokens.weight.grad[PAD].any()


@ALL_KINDS
def test_the_end_of_sequence_trains_where_padding_has_its_id(kind):
    model = make_model(kind)
    env = make_env(model, ["abc", "d"], tokenizer=make_tokenizer(pad="<eos>"), stop=None, rows=64)
    assert env.stop == {env.pad_token}
    buffer = experience(env).buffer
    ended = (buffer.action == env.pad_token) & buffer.mask
    assert ended.any()
    assert torch.equal(ended.any(1), env.ended(buffer))
    assert torch.equal(ended.int().argmax(1)[ended.any(1)], (buffer.mask.sum(1) + 1)[ended.any(1)])  # prompt of 3
    policy = model.distribution(buffer.obs.columns(0, -1))
    hidden = policy.hidden.detach().requires_grad_()
    (g,) = torch.autograd.grad(type(policy)(hidden, policy.acts, policy.head).log_prob(buffer.action).sum(), hidden)
    assert g[ended].any(-1).all()
    assert not g[~buffer.mask].any()


def test_the_padding_token_of_a_model_trains_where_it_is_one_of_the_text():
    """Chat models pad with the end of a turn, which is in every prompt."""
    rows, results = make_rows(SIZES, "right"), []
    padding = int(rows.token[1, 0])
    settings = {"dtype": torch.float64, "attention": "eager"}
    models = [make_model("llama", pad_token_id=own, **settings) for own in (None, padding)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        policy = FlatPolicy(model)
        model.distribution(rows).log_prob(rows.action).sum().backward()
        v = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        product = fisher_vector_product(policy, policy.theta, make_buffer(model, rows).rows(0))(v)
        results.append((model.trunk.base.embed_tokens.weight.grad, product))
    assert results[0][0][padding].abs().max() > 0.01
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_junk_where_nothing_acts_changes_no_parameter(name):
    weights = []
    for junk in (False, True):
        model = make_model(attention="eager")
        buffer = make_buffer(model, make_rows(SIZES, before=1, after=2, padding=3 if junk else PAD))
        if junk:
            off = ~buffer.mask
            buffer = buffer.replace(
                action=torch.where(off, 5, buffer.action),
                reward=torch.where(off, 300.0, buffer.reward),
                logp=torch.where(off, -7.0, buffer.logp),
                terminated=buffer.terminated | off,
            )
        state = ALGORITHMS[name].init(model, np.random.default_rng(0))
        ALGORITHMS[name].update(model, state, buffer)
        weights.append(torch.cat([p.detach().reshape(-1) for p in trained(model)]))
    assert torch.equal(*weights)


@ALL_KINDS
@pytest.mark.parametrize("how", ["whole", "micro-batches", "checkpointing", "adapter", "temperature", "half"])
def test_the_ratio_of_the_first_minibatch_is_1(kind, how):
    settings = {
        "whole": {}, "micro-batches": {"micro_batch_tokens": 30},
        "checkpointing": {"gradient_checkpointing": True}, "adapter": {},
        "temperature": {"temperature": 0.6}, "half": {"precision": torch.bfloat16},
    }[how]  # fmt: skip
    model = make_model(kind, rank=2 if how == "adapter" else None, settings=settings)
    env = make_env(model, rows=20)
    buffer = PPOClip().estimator(experience(env).buffer).rows(model.context)
    assert not buffer.mask.all()
    parts = [
        p for m in buffer.minibatches(4, np.random.default_rng(0)) for p in m.micro_batches(model.micro_batch_steps)
    ]
    assert len(parts) > 3
    for part in parts:
        ratio = torch.exp(model.distribution(part.obs).log_prob(part.action) - part.logp)
        assert (ratio - 1)[part.mask].abs().max() < 1e-5
        assert measure(model, part, clip_coef=1e-5)["clip_fraction"] == 0


@ALL_KINDS
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits_of_policy_and_reference(kind, temperature):
    actor = make_actor(kind)
    model = LanguageModel(actor, temperature=temperature)
    rows = make_rows([(2, 4)])
    with torch.no_grad():
        expected = (actor(rows.token).logits / temperature).log_softmax(-1)[:, :-1]
    expected = expected.gather(-1, rows.token[:, 1:, None])[..., 0] * rows.acts[:, :-1]
    for policy in (model.distribution(rows.columns(0, -1)), Reference(model).distribution(rows.columns(0, -1))):
        torch.testing.assert_close(policy.log_prob(rows.token[:, 1:]), expected, rtol=0, atol=1e-5)


DROPOUT = {
    "gpt2": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
    "llama": {"attention_dropout": 0.5},
    "gpt_neox": {"attention_dropout": 0.5, "hidden_dropout": 0.5},
}


@ALL_KINDS
@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_off_whatever_the_mode_and_the_checkpoint_say(kind, checkpointing, tmp_path):
    actor, rows = make_actor(kind), make_rows(SIZES)
    expected = distributed(LanguageModel(actor), rows)
    save(actor, make_tokenizer(), tmp_path / "actor")
    config = json.loads((tmp_path / "actor/config.json").read_text())
    (tmp_path / "actor/config.json").write_text(json.dumps({**config, **DROPOUT[kind]}))
    loaded = [load_causal_lm(tmp_path / "actor") for _ in range(2)]
    model = LanguageModel(loaded[0], loaded[1].base_model, gradient_checkpointing=checkpointing)
    reference = Reference(model)
    for mode in (True, False):
        for part in (model, model.actor, model.value.trunk.base):
            part.train(mode)
        for _ in range(2):
            torch.testing.assert_close(distributed(model, rows), expected, rtol=0, atol=1e-5)
            entropy = reference.distribution(rows).entropy()[rows.acts]
            torch.testing.assert_close(entropy, expected[:, 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_of_a_model_from_elsewhere_is_off(mode):
    """One that was made without `load_causal_lm`."""
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=PAD + 1, **DROPOUT["gpt2"])
    model, rows = LanguageModel(GPT2LMHeadModel(config).train(mode)), make_rows(SIZES)
    model.train()
    assert torch.equal(distributed(model, rows), distributed(model, rows))


def test_a_model_without_gradient_checkpointing_is_named():
    model = make_lm("llama", model_type="jetmoe", num_local_experts=2, num_experts_per_tok=1, kv_channels=16)
    with pytest.raises(ConfigError, match=r"^JetMoeModel has no gradient checkpointing: use micro_batch_tokens"):
        LanguageModel(model, gradient_checkpointing=True)


def test_no_layer_is_dropped_while_activations_are_recomputed():
    """Which is in training mode, where OPT would leave out layers at random."""
    settings = {k: x for k, x in SHAPE.items() if k not in ("num_key_value_heads", "intermediate_size")}
    config = OPTConfig(**settings, ffn_dim=48, word_embed_proj_dim=32, vocab_size=PAD + 1, layerdrop=0.9)
    model, rows = LanguageModel(OPTForCausalLM(config), gradient_checkpointing=True), make_rows(SIZES)
    with torch.no_grad():
        expected = distributed(model, rows)
    torch.testing.assert_close(distributed(model, rows), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_router_weighs_its_experts_as_in_transformers(checkpointing):
    """That of PhiMoE weighs them by its jitter, and samples them in training mode."""
    settings = {**SHAPE, "num_local_experts": 8, "router_jitter_noise": 0.5, "vocab_size": PAD + 1}
    actor = AutoModelForCausalLM.from_config(AutoConfig.for_model("phimoe", **settings)).eval()
    row = single(make_rows(SIZES), 2)
    expected = actor(row.token).logits[row.acts].log_softmax(-1)
    log_probs = LanguageModel(actor, gradient_checkpointing=checkpointing).distribution(row).at_steps.log_probs
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-5)
    assert actor.config.router_jitter_noise == 0.5


@ALL_KINDS
@pytest.mark.parametrize("critic", [False, True])
def test_checkpointing_changes_no_gradient(kind, critic):
    rows, gradients = make_rows(SIZES), []
    for checkpointing in (False, True):
        model = make_model(kind, critic=critic, settings={"gradient_checkpointing": checkpointing})
        batch = PPOClip().estimator(make_buffer(model, rows)).rows(0)
        gradients.append(gradient_of(PPOClip().loss, model, batch, 0.2, 0.0))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert gradients[0].abs().max() > 0.01


def test_checkpointing_keeps_less_for_the_backward_pass():
    def kept(checkpointing):
        model, sizes = make_model(settings={"gradient_checkpointing": checkpointing}), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            distributed(model, make_rows(SIZES))
        return sum(sizes)

    assert kept(True) < 0.6 * kept(False)


def test_half_precision_is_close_and_keeps_parameters_single():
    rows = make_rows(SIZES)
    single_precision, half = make_model(), make_model(settings={"precision": torch.bfloat16})
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    with torch.no_grad():
        error = (distributed(half, rows) - distributed(single_precision, rows)).abs().max()
    assert 1e-4 < error < 0.3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_of_uneven_size_change_no_update(name):
    weights = []
    for micro_batch_tokens in (None, 25):
        model = make_small(micro_batch_tokens=micro_batch_tokens)
        buffer = make_buffer(model, make_rows([*SIZES, (4, 2)], vocabulary=7, padding=0))
        assert [p.num_rows for p in buffer.micro_batches(25)] == [2, 2, 1]
        state = ALGORITHMS[name].init(model, np.random.default_rng(0))
        ALGORITHMS[name].update(model, state, buffer)
        weights.append(torch.cat([p.detach().reshape(-1) for p in trained(model)]))
    torch.testing.assert_close(*weights, rtol=0, atol=1e-8)  # Adam's 1/√v has amplified rounding


@ALL_KINDS
def test_gradients_of_uneven_micro_batches_add_up(kind):
    model = make_model(kind, dtype=torch.float64)
    batch = PPOClip().estimator(make_buffer(model, make_rows([*SIZES, (4, 2)]))).rows(0)
    expected = gradient_of(PPOClip().loss, model, batch, 0.2, 0.0)
    for model.micro_batch_steps in (None, 12, 25, 40):
        optimizer = Adam(trained(model))
        norm = optimizer.minimize(PPOClip().loss, model, batch, 0.2, 0.0, learning_rate=0.0)
        found = optimizer.m / (1 - optimizer.betas[0])  # the first moment starts from 0
        # what other architectures compute in single precision within a layer rounds differently with its batch
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if kind == "gpt2" else 1e-6)
        assert norm == pytest.approx(float(expected.norm()), rel=1e-6)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("micro_batch_tokens", [None, 25])
def test_adam_on_a_language_model_equals_torch(micro_batch_tokens, fast):
    """Over several steps, tied embeddings included, whatever a step leaves behind for the next."""
    ours, theirs = make_small(micro_batch_tokens=micro_batch_tokens), make_small()
    batch = PPOClip().estimator(make_buffer(ours, make_rows(SIZES, vocabulary=7, padding=0))).rows(0)
    adam = Adam(trained(ours))
    optimizer, reference = FastAdam(adam) if fast else adam, torch.optim.Adam(trained(theirs), lr=0.01, eps=1e-5)
    for _ in range(5):
        optimizer.minimize(PPOClip().loss, ours, batch, 0.2, 0.0, learning_rate=0.01)
        reference.zero_grad()
        PPOClip().loss(theirs, batch, 0.2, 0.0).backward()
        reference.step()
    for mine, expected in zip(trained(ours), trained(theirs), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-9)


def test_tied_embeddings_count_once():
    model = make_model()
    assert model.trunk.base.wte.weight is model.policy.head.weight
    parameters = sum(p.numel() for p in model.policy_parameters())
    assert parameters == model.actor.num_parameters() == 58 * 32 + 32 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32
    policy = FlatPolicy(model)
    assert len(policy.theta) == parameters
    assert len(Adam(model.policy_parameters()).theta) == parameters
    untied = make_model("llama")
    assert untied.trunk.base.embed_tokens.weight is not untied.policy.head.weight
    assert sum(p.numel() for p in untied.policy_parameters()) == untied.actor.num_parameters()


@ALL_KINDS
def test_flat_policy_is_a_function_of_theta_that_assign_makes_the_model(kind):
    model, rows = make_model(kind, attention="eager"), make_rows(SIZES)
    action = torch.nn.functional.pad(rows.token[:, 1:], (0, 1))
    policy = FlatPolicy(model)
    theta = policy.theta + 0.1 * torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(0))
    before = model.distribution(rows).log_prob(action).detach()

    def logp(theta):
        return policy(theta, lambda model: model.distribution(rows).log_prob(action))

    assert torch.equal(logp(policy.theta), before)
    moved = logp(theta)
    assert (moved - before).abs().max() > 0.1
    assert torch.equal(model.distribution(rows).log_prob(action), before)
    policy.assign(theta)
    torch.testing.assert_close(model.distribution(rows).log_prob(action), moved, rtol=0, atol=1e-5)
    with torch.no_grad():
        logits = model.actor(single(rows, 0).token).logits
    expected = logits.log_softmax(-1)[0, :-1].gather(-1, single(rows, 0).token[0, 1:, None])[:, 0]
    acts = single(rows, 0).acts[0, :-1]
    torch.testing.assert_close(moved[0][rows.acts[0]], expected[acts], rtol=0, atol=1e-5)


def explicit_fisher(model, rows):
    """Mean over the acting steps of Σ_a π(a)·∇log π(a)·∇log π(a)ᵀ, action by action."""
    logp = model.distribution(rows).at_steps.log_probs
    fisher = 0
    for step in logp:
        for one in step:
            gradients = torch.autograd.grad(one, model.policy_parameters(), retain_graph=True)
            g = torch.cat([x.reshape(-1) for x in gradients])
            fisher = fisher + one.detach().exp() / len(logp) * torch.outer(g, g)
    return fisher


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("micro_batch_tokens", [None, 10])
def test_fisher_products_equal_the_explicit_fisher_matrix(micro_batch_tokens, rank):
    """Of all weights, or of an adapter alone."""
    model = make_small(rank, micro_batch_tokens=micro_batch_tokens)
    rows = make_rows([(2, 3), (3, 1), (1, 2)], vocabulary=7, padding=0)
    buffer = make_buffer(model, rows).rows(0)
    policy = FlatPolicy(model)
    assert len(list(buffer.micro_batches(model.micro_batch_steps))) == (1 if micro_batch_tokens is None else 2)
    product = fisher_vector_product(policy, policy.theta, buffer)
    fisher = explicit_fisher(model, rows)
    whole = 7 * 8 + 12 * 8 + 12 * 8**2 + 13 * 8 + 2 * 8
    assert len(fisher) == (whole if rank is None else rank * (8 * 4 + 8 * 2 + 8 * 5 + 8 * 5))
    vectors = torch.randn(6, len(fisher), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for v in vectors:
        torch.testing.assert_close(product(v), fisher @ v, rtol=0, atol=1e-8)
        curvature = fisher_curvature(policy, policy.theta, buffer, v)
        assert curvature == pytest.approx(float(v @ fisher @ v), rel=1e-8)
    assert (fisher @ vectors[0]).abs().max() > 0.01


@pytest.mark.parametrize("rank", [None, 2])
def test_the_natural_gradient_step_is_the_solution_of_the_explicit_system(rank):
    """Scaled to the quadratic model of the KL. Of an adapter, nothing else moves, and the reference stays."""
    model, rows = make_small(rank), make_rows([(2, 3), (3, 1), (1, 2)], vocabulary=7, padding=0)
    algorithm = NPG(step_kl=1e-6, cg_iters=300, cg_damping=0.01, vf_epochs=0)
    buffer, policy, reference = make_buffer(model, rows), FlatPolicy(model), Reference(model)
    batch = algorithm.estimator(buffer).rows(0)
    advantage = batch.advantage[batch.mask]
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    logp = model.distribution(batch.obs).log_prob(batch.action)[batch.mask]
    g = torch.cat([x.reshape(-1) for x in torch.autograd.grad((logp * advantage).mean(), model.policy_parameters())])
    fisher = explicit_fisher(model, rows)
    x = torch.linalg.solve(fisher + 0.01 * torch.eye(len(g), dtype=torch.float64), g)
    expected = (2e-6 / (x @ fisher @ x)).sqrt() * x
    before = policy.theta
    fixed = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    entropy = reference.distribution(rows).entropy()
    metrics = algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
    error = (policy.theta - before - expected).norm() / expected.norm()
    assert error < 1e-4  # conjugate gradient stops at a residual of 1e-5
    assert metrics["kl"] == pytest.approx(1e-6, rel=0.05)
    assert bool(fixed) is (rank is not None)
    assert all(torch.equal(p, fixed[name]) for name, p in model.named_parameters() if name in fixed)
    assert torch.equal(reference.distribution(rows).entropy(), entropy)


@ALL_KINDS
@pytest.mark.parametrize("rank", [None, 2])
def test_fisher_products_in_bfloat16_are_near_those_in_float32(kind, rank):
    """A rounding changes a number by up to 2⁻⁸ = 0.4 %. Some fifty, one after the other, make up an error of
    √50·0.4 % ≈ 3 % if they are independent: the tolerance is 5 %. In vᵀFv most of them cancel."""
    found, v = [], None
    for precision in (None, torch.bfloat16):
        model = make_model(kind, rank=rank, attention="eager", settings={"precision": precision})
        policy, buffer = FlatPolicy(move(model)), make_buffer(model, make_rows(SIZES)).rows(0)
        v = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(0)) if v is None else v
        product = fisher_vector_product(policy, policy.theta, buffer)(v)
        assert product.dtype == torch.float32
        found.append((product, float(v @ product), fisher_curvature(policy, policy.theta, buffer, v)))
    (single_precision, *numbers), (half, *rounded) = found
    assert 1e-3 < float((half - single_precision).norm() / single_precision.norm()) < 0.05
    assert rounded == pytest.approx(numbers, rel=0.02)
    assert min(numbers) > 1


@ALL_KINDS
def test_fused_attention_has_no_forward_mode_derivative_and_plain_attention_has_one(kind):
    def tangent(attention):
        model, rows = make_model(kind, attention=attention), make_rows(SIZES)
        with forward_ad.dual_level():
            moving = {name: forward_ad.make_dual(p.detach(), p.detach()) for name, p in model.named_parameters()}
            policy, _ = torch.func.functional_call(model, moving, (rows,))
            return forward_ad.unpack_dual(policy.hidden).tangent

    assert tangent("eager").isfinite().all()
    with pytest.raises(NotImplementedError, match="forward AD"):
        tangent("sdpa")


@pytest.mark.parametrize("algorithm", ["npg", "trpo"])
def test_fused_attention_is_refused_where_two_derivatives_are_needed(algorithm):
    with pytest.raises(ConfigError, match=f"attention: {algorithm} needs forward-mode derivatives, which sdpa"):
        make_config(algorithm, "RandomWalks", attention="sdpa")
    with pytest.raises(ConfigError, match="gradient_checkpointing has no forward-mode derivatives"):
        make_config(algorithm, "RandomWalks", gradient_checkpointing=True)
    assert make_config(algorithm, "RandomWalks").task.attention == "auto"
    assert make_config("ppo-clip", "RandomWalks", attention="sdpa").task.attention == "sdpa"


def test_the_reference_stays_what_the_actor_was():
    model, rows = make_model(settings={"temperature": 0.8}), make_rows(SIZES)
    before = distributed(model, rows)[:, 1].detach()
    reference = Reference(model)
    own = [*reference.trunk.parameters(), *reference.head.parameters()]
    assert not any(p.requires_grad for p in own)
    assert {id(p) for p in own}.isdisjoint(id(p) for p in model.parameters())
    move(model)
    entropy = reference.distribution(rows).entropy()[rows.acts]
    torch.testing.assert_close(entropy, before, rtol=0, atol=1e-6)
    assert not entropy.requires_grad
    assert (distributed(model, rows)[:, 1] - before).abs().max() > 0.01


@ALL_KINDS
def test_an_adapter_is_all_that_trains_and_off_it_is_the_reference(kind, tmp_path):
    plain, model, rows = LanguageModel(make_actor(kind)), make_model(kind, rank=2), make_rows(SIZES)
    named = {id(p): name for name, p in model.named_parameters()}
    assert all("lora_" in named[id(p)] for p in model.policy_parameters())
    assert len(model.policy_parameters()) > 0
    assert all("lora_" in name or name.startswith("value.head") for name in model.state_dict())

    reference = Reference(model)
    frozen = [p.clone() for p in model.parameters() if not p.requires_grad]
    state = PPOClip(epochs=1).init(model, np.random.default_rng(0))
    PPOClip(epochs=1).update(model, state, make_buffer(model, rows))
    move(model, model.policy_parameters())
    assert all(map(torch.equal, frozen, (p for p in model.parameters() if not p.requires_grad)))

    expected = plain.distribution(rows).entropy()
    torch.testing.assert_close(reference.distribution(rows).entropy(), expected, rtol=0, atol=1e-5)
    assert (model.distribution(rows).entropy() - expected).abs().max() > 0.01

    row = single(rows, 0)
    with torch.no_grad():
        policy = model.policy.functional(model.trunk.run(row.token, row.attention).last_hidden_state[0])
        model.save_pretrained(make_tokenizer(), tmp_path / "merged")
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(merged(row.token).logits[0], policy, rtol=0, atol=1e-4)
    assert not (tmp_path / "merged/adapter_config.json").exists()
    assert hasattr(model.actor, "disable_adapter")


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("phimoe", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("falcon", {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    ],
)
def test_adapters_of_subclasses_of_linear_layers(kind, layers):
    """The router of PhiMoE, which returns its weights and its experts, gets none; all layers of Falcon do."""
    actor = with_adapter(other_actor(kind), 2, seed=0)
    assert {name.split(".")[-4] for name, p in actor.named_parameters() if p.requires_grad} == layers
    assert distributed(LanguageModel(actor), make_rows(SIZES)).isfinite().all()


def test_the_reference_leaves_the_frozen_part_of_an_adapter_frozen():
    model = make_model(rank=2)
    for name, p in model.actor.named_parameters():
        p.requires_grad_("lora_B" in name)
    expected = list(model.state_dict())
    Reference(model).distribution(make_rows(SIZES))
    assert list(model.state_dict()) == expected


def test_an_adapter_is_the_same_for_the_same_seed_and_leaves_the_global_generator_alone():
    actors, state = [make_actor() for _ in range(3)], torch.get_rng_state()
    first, second, other = (
        {name: p for name, p in with_adapter(actor, 2, seed).named_parameters() if p.requires_grad}
        for actor, seed in zip(actors, (0, 0, 1), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@ALL_KINDS
def test_a_saved_actor_gives_the_same_logits(kind, tmp_path):
    model, rows = make_model(kind), make_rows(SIZES)
    optimizer = Adam(trained(model))  # its parameters are views of one vector, which must not confuse the file
    batch = PPOClip().estimator(make_buffer(model, rows)).rows(0)
    optimizer.minimize(PPOClip().loss, model, batch, 0.2, 0.0, learning_rate=0.1)
    model.save_pretrained(make_tokenizer(), tmp_path / "actor")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "actor")
    row = single(rows, 1)
    with torch.no_grad():
        expected = model.policy.functional(model.trunk.run(row.token, row.attention).last_hidden_state[0])
        torch.testing.assert_close(loaded(row.token).logits[0], expected, rtol=0, atol=1e-5)
    size = (tmp_path / "actor/model.safetensors").stat().st_size
    assert size < 4.5 * model.actor.num_parameters()


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("critic", [False, True])
def test_state_dict_round_trip(rank, critic):
    rows, saved = make_rows(SIZES), make_model(rank=rank, critic=critic)
    move(saved)
    state = {name: x.clone() for name, x in saved.state_dict().items()}
    assert len({x.data_ptr() for x in saved.state_dict().values()}) == len(state), "tied parameters come once"
    other = make_model(rank=rank, critic=critic)
    theta = FlatPolicy(other).theta
    other.load_state_dict(state)
    assert not torch.equal(FlatPolicy(other).theta, theta)
    assert torch.equal(distributed(other, rows), distributed(saved, rows))
    with pytest.raises(RuntimeError, match="other names or shapes"):
        make_model("llama").load_state_dict(state)
    with pytest.raises(RuntimeError, match="other names or shapes"):
        make_model(rank=rank, critic=critic, n_positions=16).load_state_dict(
            {**state, "value.head.bias": torch.zeros(2)}
        )
