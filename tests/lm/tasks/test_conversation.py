"""Talking to a language model, token by token."""

import pytest
import torch
from lm_builders import make_model
from tiny import EOS, make_tokenizer

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune.sft import train_tokenizer
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.tasks.conversation import Speaker

TEMPLATE = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"


def make_speaker(template=TEMPLATE, stop=(EOS,), most=4, greedy=True, seed=0, **model):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return Speaker(make_model("llama", **model), tokenizer, frozenset(stop), most, greedy, seed)


def say(speaker, text):
    return "".join(speaker.answer(text))


def continued(speaker, text, most=4):
    """The most probable continuation of a text, each token by a forward pass over all before it."""
    ids = speaker.tokenizer(text)["input_ids"]
    start = len(ids)
    for _ in range(most):
        with torch.no_grad():
            ids.append(int(speaker.model.actor(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in speaker.stop:
            ids.pop()
            break
    return speaker.tokenizer.decode(ids[start:])


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_answer_is_the_continuation_of_the_conversation(template):
    speaker = make_speaker(template)
    first = say(speaker, "hello")
    assert first == continued(speaker, "hello." if template else "hello")
    second = say(speaker, "you")
    assert second == continued(speaker, f"hello.{first}.you." if template else "you")
    speaker.new()
    assert say(speaker, "hello") == first


def test_what_was_read_is_not_read_again(monkeypatch):
    speaker = make_speaker()
    act, columns = speaker.model.act, []
    monkeypatch.setattr(
        speaker.model, "act", lambda tokens, memory: columns.append(tokens.token.shape[1]) or act(tokens, memory)
    )
    first = say(speaker, "hello")
    assert columns == [6, 1, 1, 1]
    say(speaker, "you")
    assert columns[4] == len(f"hello.{first}.you.") - len(f"hello.{first}"[:-1])  # the last token was only sampled
    assert columns[5:] == [1, 1, 1]


def test_stop_token_ends_an_answer_and_is_not_said_if_it_is_special():
    whole = say(make_speaker(), "hello")
    (letter,) = make_tokenizer()(whole[2])["input_ids"]
    assert say(make_speaker(stop=[letter]), "hello") == whole[:3]
    speaker = make_speaker(stop=[letter])
    speaker.tokenizer.eos_token = whole[2]
    assert say(speaker, "hello") == whole[:2]


def test_an_answer_goes_on_after_bytes_that_are_no_character(monkeypatch):
    texts = ["\n", "\ufffd\ufffd", "\ufffd\ufffd sat"]  # of a tokenizer that joins the tokens of single bytes
    monkeypatch.setattr("rlzoo.lm.tasks.conversation.decode", lambda _, rows, stop: [texts[len(rows[0]) - 1]])
    speaker = make_speaker(most=3, stop=())
    assert say(speaker, "hello") == "\n\ufffd sat"
    assert speaker.messages[-1]["content"] == texts[-1]


def test_samples_depend_on_seed_and_temperature():
    def answers(seed, temperature):
        return say(make_speaker(greedy=False, most=12, seed=seed, settings={"temperature": temperature}), "hi")

    assert answers(1, 1.0) == answers(1, 1.0) != answers(2, 1.0)
    assert answers(1, 1e-4) == answers(2, 1e-4) == say(make_speaker(most=12), "hi")


def test_interrupted_answer_stays_in_the_conversation():
    speaker, fresh = make_speaker(), make_speaker()
    answer = speaker.answer("hello")
    begun = next(answer) + next(answer)
    answer.close()
    assert [x["content"] for x in speaker.messages] == ["hello", begun]
    fresh.messages = list(speaker.messages)
    assert say(speaker, "go on") == say(fresh, "go on")


def test_answer_ends_with_the_context_and_a_full_one_is_an_error():
    speaker = make_speaker(most=1000)  # a context of 32
    answer = speaker.tokenizer(say(speaker, "hello"))["input_ids"]
    assert len(answer) == 32 - len("hello.")
    with pytest.raises(ConfigError, match=r"fills the model's context of 32 tokens: begin a new one with /new"):
        say(speaker, "you")
    speaker.new()
    assert say(speaker, "you")


def test_message_longer_than_the_context_is_an_error_that_no_new_conversation_would_mend():
    for template in (TEMPLATE, None):
        speaker = make_speaker(template)
        say(speaker, "hello")
        speaker.new()
        with pytest.raises(ConfigError, match=r"the message fills the model's context of 32 tokens: write a shorter"):
            say(speaker, "you" * 20)


def test_only_allowed_tokens_are_said():
    asked = []

    def letters(ids):
        asked.append(list(ids))
        return tokenizer("ab")["input_ids"]

    tokenizer = make_tokenizer()
    speaker = make_speaker(greedy=False, most=12)
    speaker.allowed = AllowedTokens(letters, "letters", len(tokenizer))
    first = say(speaker, "hello")
    assert set(first) <= set("ab")
    assert len(first) == 12
    assert set(say(speaker, "you")) <= set("ab")
    assert [tokenizer.decode(ids) for ids in (asked[0], asked[11], asked[12])] == [
        "hello.", f"hello.{first[:11]}", f"hello.{first}.you."
    ]  # fmt: skip


def test_message_without_tokens_is_an_error():
    with pytest.raises(ConfigError, match="'' has no tokens"):
        say(make_speaker(None), "")


def test_half_a_character_waits_for_its_other_half(monkeypatch):
    speaker = make_speaker(None)
    speaker.tokenizer = train_tokenizer(["a text", "another"], 300)
    ids = speaker.tokenizer("né")["input_ids"]
    assert len(ids) == 3
    monkeypatch.setattr(speaker, "_tokens", lambda _: iter(ids))
    assert list(speaker.answer("a")) == ["n", "é"]
