"""Language models with a few thousand parameters, and a tokenizer with one token for each character."""

import string

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlzoo.lm.model.padding import summed_nll
from rlzoo.lm.model.pretrained import load_reward_model, new_causal_lm
from rlzoo.lm.model.saving import save, use_tokens
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.runs.logs.display import Display

CHARACTERS = string.ascii_letters + " .,!"
EOS, PAD = len(CHARACTERS), len(CHARACTERS) + 1

CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32},
    "llama": {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 32,
    },
    "gpt_neox": {
        "model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 32,
    },
}  # fmt: skip


def make_tokenizer(eos="<eos>", pad="<pad>"):
    """Each character a token, "<eos>" and "<pad>" the last two, used as what the arguments say."""
    vocabulary = {token: i for i, token in enumerate((*CHARACTERS, "<eos>", "<pad>"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token=pad)


def make_lm(kind="gpt2", seed=0, **settings):
    """Random weights, ten times the usual ones, so that what a row holds can be told from its scores."""
    model = new_causal_lm({**CONFIGS[kind], "initializer_range": 0.2, **settings}, PAD + 1, seed)
    use_tokens(model, make_tokenizer())
    return model


def save_lm(folder, kind="gpt2", tokenizer=None, **settings):
    tokenizer = tokenizer or make_tokenizer()
    model = make_lm(kind, **settings)
    use_tokens(model, tokenizer)
    save(model, tokenizer, folder)
    return folder


def make_reward_model(folder, seed=0):
    """A reward model that has not been trained, with a head ten times as large as a new one."""
    model = load_reward_model(folder, head_seed=seed)
    with torch.no_grad():
        model.score.weight *= 10
    return RewardModel(model, make_tokenizer())


def score_by_definition(model, row):
    """The score of a row of tokens without padding."""
    hidden = model.base_model(torch.tensor([row]))[0]
    return model.score(hidden[0, -1]).item()


def lm_loss(model, ids, attention):
    """−mean log π(x_t | x_<t) over all tokens but the first of each row, padding left out; 0 if there is none."""
    predicted = (attention.sum(1) - 1).clamp(min=0).sum()
    return summed_nll(model, ids, attention) / predicted.clamp(min=1)


class Said(Display):
    """A display that keeps the lines in a list."""

    def __init__(self, lines):
        self.lines = lines

    def say(self, line):
        self.lines.append(line)
