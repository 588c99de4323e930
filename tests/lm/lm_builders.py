"""Language models as actor-critics, rows of tokens in every layout, and experience with them."""

import torch
from tiny import CONFIGS, EOS, PAD, make_tokenizer

from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import Collector, evaluate, score
from rlzoo.core.env import Experience
from rlzoo.lm.fast.model import accelerate_model
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.language_model import LanguageModel, with_adapter
from rlzoo.lm.model.pretrained import new_causal_lm
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.generation import Generation
from rlzoo.lm.reward.prompt import Prompts
from rlzoo.lm.reward.scoring import Scoring

KINDS = tuple(CONFIGS)
LETTERS = 52
"""Tokens 0 … 51 are letters."""
STOPS = frozenset({EOS, *range(12)})
"""Stop tokens that a model with random weights soon samples."""


def make_actor(kind="gpt2", *, vocabulary=PAD + 1, seed=0, attention="sdpa", dtype=torch.float32, **config):
    """A causal language model of random weights, ten times the usual ones."""
    config = {**CONFIGS[kind], "initializer_range": 0.2, **config}
    return new_causal_lm(config, vocabulary, seed, attention).to(dtype)


def make_model(kind="gpt2", *, critic=False, rank=None, settings=None, **actor):
    """An actor and critic whose value is not 0, as after some training."""
    critic = make_actor(kind, **{**actor, "seed": 9}).base_model if critic else None
    plain = make_actor(kind, **actor)
    model = LanguageModel(plain if rank is None else with_adapter(plain, rank, seed=0), critic, **(settings or {}))
    return move(model, list(model.value.head.parameters()), 0.3)


def make_fast(*args, **settings):
    """`make_model` with the faster implementations."""
    model = make_model(*args, **settings)
    accelerate_model(model)
    return model


def make_small(rank=None, **settings):
    """GPT-2 with a thousand parameters, in double precision and twice differentiable; with an adapter off its start."""
    shape = {"vocabulary": 7, "n_layer": 1, "n_embd": 8, "n_positions": 12}
    model = make_model(**shape, rank=rank, dtype=torch.float64, attention="eager", settings=settings)
    return model if rank is None else move(model, model.policy_parameters(), 0.3)


@torch.no_grad()
def move(model, parameters=None, spread=0.05, seed=1):
    """`model`, some or all of its trained parameters moved by `spread` times a normal."""
    generator = torch.Generator().manual_seed(seed)
    for p in [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters:
        p.add_(spread * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def make_rows(sizes, layout="generated", before=0, after=0, vocabulary=LETTERS, padding=PAD):
    """Rows of the same random tokens whatever the layout. `sizes` are those of (prompt, response).

    Padding is left of all ("left"), right of all ("right"), or left of prompts and right of responses
    ("generated"); `before` and `after` are columns of it in addition. `x[rows.acts]` lists the steps row by row.
    """
    generator = torch.Generator().manual_seed(len(sizes))
    texts = [torch.randint(vocabulary, (p + r,), generator=generator) for p, r in sizes]
    longest_prompt, longest = max(p for p, _ in sizes), max(map(len, texts))
    starts = {
        "left": [longest - len(text) for text in texts],
        "right": [0 for _ in texts],
        "generated": [longest_prompt - p for p, _ in sizes],
    }[layout]
    columns = before + after + max(start + len(text) for start, text in zip(starts, texts, strict=True))
    token = torch.full((len(sizes), columns), padding)
    attention, acts = torch.zeros(2, *token.shape, dtype=torch.bool)
    for i, ((prompt, _), text, start) in enumerate(zip(sizes, texts, starts, strict=True)):
        first, end = before + start, before + start + len(text)
        token[i, first:end] = text
        attention[i, first:end] = True
        acts[i, first + prompt - 1 : end - 1] = True
    return Tokens(token, attention, acts)


def single(rows, i):
    """Row i by itself, without any padding."""
    return rows.map(lambda x: x[i : i + 1, rows.attention[i]])


def buffer_of(rows):
    """Step t observes token t and all before it, and acts with token t + 1; a response's last token terminates."""
    mask = rows.acts[:, :-1]
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    action, none = rows.token[:, 1:], torch.zeros_like(mask)
    return Buffer(rows, action, torch.zeros(mask.shape), terminated=last, truncated=none, mask=mask)


def make_buffer(model, rows, seed=0):
    """An evaluated buffer of these rows, with random rewards."""
    buffer = buffer_of(rows)
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(buffer.mask.shape, generator=generator, dtype=next(model.parameters()).dtype)
    return evaluate(model, buffer.replace(reward=reward * buffer.mask))


def letters(prompts, responses):
    """A score: the number of letters from the first half of the alphabet in a response, minus a half."""
    return [sum(x in "abcdefghijklm" for x in response) - 0.5 for response in responses]


def make_env(model, prompts=("ab", "cdefg", "h"), score=letters, tokenizer=None, **settings):
    """An environment whose settings are those of its prompts, scoring and generation together."""
    settings = {"rows": 6, "max_new_tokens": 6, "stop": STOPS, **settings}

    def take(*names):
        return {name: settings.pop(name) for name in names if name in settings}

    texts = Prompts(prompts, **take("group_size", "seed"))
    scoring = Scoring(score, **take("name", "kl_estimator", "control", "treatment", "moments"))
    stop = settings.pop("stop")
    limits = take("max_new_tokens", "max_prompt_tokens", "turns", "allowed")
    generation = Generation(stop=None if stop is None else frozenset(stop), **limits)
    return LMEnv(model, tokenizer or make_tokenizer(), texts, scoring, generation, **settings)


def collect(env, seed=0, deterministic=False):
    """A buffer of sampled responses, without log-probabilities and rewards."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return Collector(env, whole_episodes=True).collect(TokenActor(env.model, generator, deterministic)).buffer


def experience(env, seed=0):
    """Experience as in training: sampled, evaluated and scored."""
    return rewarded(env, collect(env, seed))


def rewarded(env, buffer):
    """The experience of a buffer of the environment, evaluated and scored."""
    return score(env, Experience(evaluate(env.model, buffer), [], {}))


def scored(env, rows):
    """The experience of given rows. Their prompts are those of the environment, in its order."""
    env = env.over(env.prompts.texts)
    env.reset()
    return rewarded(env, buffer_of(rows))


def collected(task):
    """The next experience of a task as training has it: sampled, evaluated and scored."""
    return rewarded(task.env, task.collect().buffer)


def same(a, b):
    """Whether two structures hold equal tensors."""
    return all(torch.equal(x, y) for x, y in zip(a.tensors(), b.tensors(), strict=True))
