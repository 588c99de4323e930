"""Conversations: what a reply adds, what of it trains, where an episode ends, and wrong replies."""

import numpy as np
import pytest
import short_runs
import tiny
import torch
from lm_builders import buffer_of, collect, experience, make_env, make_model, move, rewarded
from simulated_gpu import GPU, simulated
from tiny import PAD
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rlzoo
from rlzoo.core.system.errors import ConfigError, EnvError
from rlzoo.core.system.functions import as_function
from rlzoo.core.tensors import zip_leaves
from rlzoo.lm.finetune.chat import completion_row
from rlzoo.lm.reward.gymnasium_env import ResponseEnv
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.reward.turns import Answer, Turns, decode, encode_reply, speech
from rlzoo.runs.loop import Trainer
from rlzoo.runs.registry import ALGORITHMS


def echo(conversations):
    """Says "no" to the first turn and "nnno" to the second, and ends after the third."""
    return [None if len(x.turns) > 4 else "n" * len(x.turns) + "o" for x in conversations]


def rewarding(conversations):
    return [(None if len(x.turns) > 4 else "no", 0.25 * len(x.turns)) for x in conversations]


def half(prompts, responses, turns):
    """A score of the last turn alone."""
    return [len(said[-1]) - 0.5 for said in turns]


def letters(*text):
    return [tiny.CHARACTERS.index(x) for x in "".join(text)]


def play(env, *script):
    """Steps through an episode in which row i chooses the letters of script i where it acts; the columns."""
    scripts = [iter(letters(x)) for x in script]
    obs, forced = env.reset()
    columns, rewards, ends = [obs], [], []
    while not (forced.all() and len(ends) and np.any(ends, 0).all()):
        action = np.array([52 if held else next(x) for held, x in zip(forced, scripts, strict=True)])
        obs, reward, terminated, truncated, forced = env.step(action)
        assert not truncated.any()
        columns.append(obs)
        rewards.append(reward)
        ends.append(terminated)
    return zip_leaves(lambda xs: torch.from_numpy(np.stack(xs, 1)), columns), np.stack(rewards, 1), np.stack(ends, 1)


def text(row):
    return "".join("_" if i == PAD else (*tiny.CHARACTERS, "$")[i] for i in row.tolist())


def conversation_env(reply=echo, prompts=("ab", "h"), score=half, max_turns=None, model=None, **settings):
    return make_env(model or make_model(), prompts, score, turns=Turns(reply, "echo", max_turns), **settings)


def test_a_conversation_by_hand():
    """A "z" ends a turn, and each of the first two gets "no" as a reply. The second row stops at the token limit."""
    env = conversation_env(rewarding, stop=letters("z"), max_new_tokens=9).over(["ab", "h"])
    rows, rewards, ends = play(env, "xzyzz", "zwwwwww")
    assert [text(row) for row in rows.token] == ["abxznoyznoz_"[:11], "_hznowwwwww"]
    assert rows.attention.int().tolist() == [[1] * 11, [0] + [1] * 10]
    assert rows.acts.int().tolist() == [[0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0]]
    assert rewards.tolist() == [[0, 0, 0.25, 0, 0, 0, 0.75, 0, 0, 1.25], [0, 0.25, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert ends.astype(int).tolist() == [[0] * 9 + [1], [0] * 9 + [1]]


def test_what_a_reply_writes_into_columns_ends_with_the_episode():
    seen = []

    def reply(conversations):
        for x in conversations:
            x.columns["answers"].append(len(x.turns))
            seen.append(list(x.columns["answers"]))
        return ["no"] * len(conversations)

    prompts = [Prompt("ab", {"answers": []})]
    env = conversation_env(reply, prompts, max_turns=3, stop=letters("z"), max_new_tokens=20).over(prompts)
    for _ in range(2):
        play(env, "xzyzzzz")
    assert seen == [[1], [1, 3], [1, 3, 5]] * 2
    assert prompts[0].columns == {"answers": []}


@pytest.mark.parametrize(
    ("max_turns", "expected"), [(1, "abxz"), (2, "abxznoyz"), (3, "abxznoyznnnoz"), (9, "abxznoyznnnoz")]
)
def test_a_limit_of_turns(max_turns, expected):
    env = conversation_env(max_turns=max_turns, stop=letters("z"), max_new_tokens=20).over(["ab"])
    assert text(play(env, "xzyzzzz")[0].token[0]) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [(4, "abxz"), (5, "abxznoy"), (6, "abxznoyz"), (10, "abxznoyz"), (11, "abxznoyznnnoz")]
)
def test_a_reply_that_leaves_no_room_for_a_token_ends_the_conversation(limit, expected):
    env = conversation_env(stop=letters("z"), max_new_tokens=limit).over(["ab"])
    assert text(play(env, "xzyzzzz")[0].token[0]) == expected


def test_conversations_have_the_prompt_its_columns_and_the_turns():
    seen = []

    def reply(conversations):
        seen.extend(conversations)
        return [Answer("no") if len(x.turns) == 1 else None for x in conversations]

    prompts = [Prompt("ab", {"answer": 1}), Prompt("h", {"answer": 2})]
    env = conversation_env(reply, prompts, stop=[*letters("z"), tiny.EOS], max_new_tokens=9).over(prompts)
    play(env, "xzyz", "yxzz")
    assert [(x.prompt, x.columns["answer"], x.turns) for x in seen] == [
        ("ab", 1, ["xz"]),
        ("h", 2, ["yxz"]),
        ("ab", 1, ["xz", "no", "yz"]),
        ("h", 2, ["yxz", "no", "z"]),
    ]


def test_scores_see_the_turns_and_whole_responses():
    told = {}

    def score(prompts, responses, answer, turns):
        told.update(prompts=prompts, responses=responses, answer=answer, turns=turns)
        return [0.0] * len(responses)

    prompts = [Prompt("ab", {"answer": 1}), Prompt("h", {"answer": 2})]
    env = conversation_env(echo, prompts, score, stop=letters("z"), max_new_tokens=20).over(prompts)
    rows, *_ = play(env, "xzyzz", "zyzz")
    rewarded(env, buffer_of(rows))
    assert told["responses"] == ["xznoyznnnoz", "znoyznnnoz"]
    assert told["turns"] == [["xz", "no", "yz", "nnno", "z"], ["z", "no", "yz", "nnno", "z"]]
    assert (told["prompts"], told["answer"]) == (["ab", "h"], [1, 2])


def test_turn_by_turn_equals_teacher_forced():
    """Log-probabilities, values and rewards of sampled conversations, and of the same rows in one piece."""
    env = conversation_env(rewarding, ("ab", "cdefg", "h"), max_new_tokens=14, rows=6)
    move(env.model)
    steps, act = [], env.model.act

    def noted(tokens, memory=None):
        policy, memory = act(tokens, memory)
        steps.append(policy)
        return policy, memory

    env.model.act = noted
    buffer = collect(env)
    env.model.act = act
    found = rewarded(env, buffer)
    assert (found.buffer.mask.int().diff(dim=1) == 1).sum(1).max() > 1  # some took several turns
    assert found.metrics["turns"] > 1
    assert found.metrics["turn_reward"] > 0
    first = buffer.mask.shape[1] - len(steps)
    acted = torch.stack([policy.log_prob(buffer.action[:, first + t]) for t, policy in enumerate(steps)], 1)
    mask = buffer.mask[:, first:]
    torch.testing.assert_close(acted[mask], found.buffer.logp[:, first:][mask], rtol=0, atol=1e-4)

    whole = buffer_of(buffer.obs).replace(reward=buffer.reward)
    again = rewarded(env, whole)
    assert torch.equal(again.buffer.logp, found.buffer.logp)
    assert torch.equal(again.buffer.reward, found.buffer.reward)
    assert torch.equal(again.buffer.value, found.buffer.value)
    assert again.episodes == found.episodes
    assert again.metrics == found.metrics


def test_rewards_of_turns_join_the_score():
    env = conversation_env(rewarding, max_new_tokens=14, rows=6)
    found = experience(env)
    turns = [len(said) // 2 + 1 for said in env.turn_texts(found.buffer)]
    ended = env.ended(found.buffer).tolist()
    for episode, said, stopped, n in zip(found.episodes, env.turn_texts(found.buffer), ended, turns, strict=True):
        given = [0.25 * (2 * k + 1) for k in range(n - (not stopped))]
        assert episode.return_ == pytest.approx(half(None, [""], [said])[0] + sum(given))
    total = found.buffer.reward.sum(1)  # the policy is the reference: no KL
    torch.testing.assert_close(total, torch.tensor([x.return_ for x in found.episodes]), rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    return folder


def settings(data, **more):
    return {
        "env": "Prompts",
        "model": str(data / "model"),
        "prompts": str(data / "prompts.txt"),
        "reward": f"{__file__}:half",
        "reply": f"{__file__}:rewarding",
        "stop_tokens": tuple("abcdefghij"),
        "responses_per_batch": 8,
        "max_new_tokens": 12,
        **more,
    }


@pytest.mark.parametrize(
    ("algorithm", "estimator"),
    [
        *((algorithm, "gae") for algorithm in ALGORITHMS),
        *(
            pytest.param("ppo-clip", estimator, marks=pytest.mark.slow)
            for estimator in ("monte-carlo", "leave-one-out", "group-norm")
        ),
    ],
)
def test_every_algorithm_and_estimator_trains_on_the_models_own_tokens_alone(algorithm, estimator, data):
    """What the actor did where a reply was forced on it changes nothing."""
    results = []
    for junk in (0, 7):
        trainer = Trainer(rlzoo.make_config(algorithm, **settings(data, responses_per_prompt=4, estimator=estimator)))
        collect_ = trainer.task.collector.collect

        def collected(actor, collect_=collect_, junk=junk):
            found = collect_(actor)
            action = torch.where(found.buffer.mask, found.buffer.action, junk)
            return found._replace(buffer=found.buffer.replace(action=action))

        trainer.task.collector.collect = collected
        metrics = trainer.iterate().metrics
        assert np.isfinite(list(metrics.values())).all()
        assert metrics["turns"] > 1
        results.append((metrics, trainer.model.state_dict()))
    assert results[0][0] == results[1][0]
    for name, p in results[0][1].items():
        assert torch.equal(p, results[1][1][name])


def test_killed_and_resumed_equals_never_killed(data, tmp_path):
    more = {"total_steps": 150, "eval_episodes": 3, "final_eval_episodes": 5, "minibatch_responses": 3, "epochs": 1}
    whole = rlzoo.train("ppo-clip", **settings(data, **more), out=tmp_path / "whole")
    part = rlzoo.train("ppo-clip", **settings(data, **more), out=tmp_path / "part")
    steps = part.steps()
    assert len(steps) > 1
    resumed = rlzoo.resume(part, checkpoint=steps[0])
    assert short_runs.outcome(resumed) == short_runs.outcome(whole)


def test_evaluation_and_play_have_the_whole_conversation(data):
    task = Trainer(rlzoo.make_config("ppo-clip", **settings(data))).task
    samples = task.sample(8, seed=0)
    assert any("no" in x.response for x in samples)
    assert task.evaluate(8, seed=0).returns.tolist() == [x.score for x in samples]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            lambda conversations: [3] * len(conversations),
            r"reply echo, row 0: returned 3, which is neither a text nor None",
        ),
        (
            lambda conversations: "no",
            r"reply echo, rows 0, 1: must return 2 texts or None, one for each conv.*; got 'no'",
        ),
        (lambda conversations: ["no"], r"reply echo, rows 0, 1: must return 2 texts or None, .*; got 1$"),
        (lambda conversations: None, r"reply echo, rows 0, 1: must return 2 texts or None, .*; got None"),
        (
            lambda conversations: [1 / 0],
            r"reply echo, rows 0, 1: ZeroDivisionError: division by zero \(.*test_turns.py:\d+\)",
        ),
        (lambda conversations: [""] * 2, r"reply echo, row 0: '' has no tokens; None ends a conversation"),
        (lambda conversations: ["n" * 10**6 + "o"] * 2, r"reply echo, row 0: .* has 1,000,001 characters; at most 1,0"),
        *(
            (
                lambda conversations, reward=reward: [("no", reward)] * 2,
                r"reply echo, row 0: the reward .* is not a finite 32-bit number",
            )
            for reward in (None, "1", float("nan"), 1e39, 10**400, np.float32("inf"))
        ),
    ],
)
def test_wrong_replies(reply, message):
    env = conversation_env(reply, stop=letters("z")).over(["ab", "h"])
    with pytest.raises(EnvError, match=f"^{message}"):
        play(env, "z", "z")


def test_a_reply_that_never_ends_is_cut_at_the_limit_of_tokens():
    env = conversation_env(lambda x: ["n"] * len(x), stop=letters("z"), max_new_tokens=7).over(["ab"])
    assert text(play(env, "zzzzzz")[0].token[0]) == "abznznznz"
    env = conversation_env(lambda x: ["n" * 10**5] * len(x), stop=letters("z"), max_new_tokens=7).over(["ab"])
    assert text(play(env, "zzzzzz")[0].token[0]) == "abz"


def test_rewards_of_turns_are_numbers_of_any_kind():
    for one in (1, True, np.float32(1), np.ones(()), torch.ones(1)):
        env = conversation_env(lambda x, one=one: [(None, one)] * len(x), stop=letters("z")).over(["ab"])
        assert play(env, "z")[1].tolist() == [[0, 1]]


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens_in_a_reply_are_plain_text_unless_it_says_otherwise(special):
    """The tokenizer knows none of the characters "<", "o", ... in another way than as those of a text."""
    answer = Answer("a<eos>", special_tokens=special)
    env = conversation_env(lambda x: [answer] * len(x), stop=letters("z"), max_new_tokens=9).over(["ab"])
    rows, *_ = play(env, "zyyyyyy")
    assert text(rows.token[0]) == ("abza$yyyyyy" if special else "abza.eos.yy")


def test_settings(data):
    with pytest.raises(ConfigError, match="max_turns is for conversations: it needs reply"):
        rlzoo.make_config("ppo-clip", **settings(data, reply=None, max_turns=2))
    with pytest.raises(ConfigError, match='reply must be a function or "module:function", such as reply=answer; got 3'):
        as_function("reply", 3, "answer")
    with pytest.raises(ConfigError, match=r"reply 'turns' is neither module:function nor file.py:function"):
        as_function("reply", "turns", "answer")
    with pytest.raises(ConfigError, match=r"column .turns. of the prompts; they have none: set reply, or"):
        make_env(make_model(), score=half, name="half")
    with pytest.raises(ConfigError, match="prompts: the column 'turns' has the name of that of conversations"):
        conversation_env(prompts=[Prompt("ab", {"turns": 1})])
    with pytest.raises(ConfigError, match="ResponseEnv gives one response to a prompt: leave out turns"):
        ResponseEnv(conversation_env())


def test_what_was_said_is_read_from_the_gpu_at_once():
    buffer = collect(make_env(make_model(), turns=Turns(echo, "echo"), max_new_tokens=12))
    expected = speech(buffer)
    with simulated() as gpu:
        moved = buffer.map(lambda x: x.to(GPU))
        gpu.waits.clear()
        assert speech(moved) == expected
        assert gpu.waits == ["_to_copy"] * 3


SENTENCEPIECE = [
    decoders.Metaspace(),
    decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
]


@pytest.mark.parametrize("decoder", SENTENCEPIECE)
def test_a_response_keeps_the_space_that_a_decoder_strips_from_a_text(decoder):
    """As those of SentencePiece do: prompt and response join as the model wrote them."""
    words = ["▁a", "▁film", "▁was", "▁great", "ly", "<eos>"]
    letters = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
    letters.pre_tokenizer = pre_tokenizers.Metaspace()
    letters.decoder = decoder
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<eos>")
    assert tokenizer.decode([2, 3]) == "was great"
    assert decode(tokenizer, [[2, 3, 5], [4], []], frozenset({5})) == [" was great", "ly", ""]


def test_a_response_of_word_pieces_joins_its_prompt():
    """Their decoder strips the space before a word, and writes ## before a piece that begins a text."""
    words = ["[UNK]", "<eos>", "a", "film", "was", "great", "##ly"]
    pieces = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<eos>")
    assert decode(tokenizer, [[4, 5, 1], [6, 3], []], frozenset({1})) == [" was great", "ly film", ""]


def test_a_special_token_without_a_name_ends_a_response_and_is_not_in_its_text():
    """As Phi-3's <|end|>, which the model's generation configuration names alone."""
    tokenizer = tiny.make_tokenizer()
    tokenizer.backend_tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert end not in tokenizer.all_special_ids
    (a,) = letters("a")
    assert decode(tokenizer, [[a, end], [end, a]], frozenset({end, a})) == ["a", "<|end|>a"]


@pytest.mark.parametrize("scheme", ["prepend", "first", "always"])
def test_no_space_is_put_before_a_text_that_is_not_the_first(scheme):
    vocabulary = {x: i for i, x in enumerate([*"\u2581abcxyz\n:Q", "<unk>"])}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    if scheme == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<unk>")
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc")["input_ids"])[0] == "\u2581"
    for ids in (encode_reply(tokenizer, Answer("abc"), "reply"), completion_row("Q:", "abc", tokenizer).ids[-4:-1]):
        assert tokenizer.convert_ids_to_tokens(ids) == ["a", "b", "c"]
