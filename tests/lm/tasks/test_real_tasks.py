"""The tasks with a real model: prompts and scores. Training on them is in the suite `real`."""

import pytest
from tiny import make_tokenizer

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.tasks import sentiment
from rlzoo.lm.tasks.instructions import KINDS, TRAINING, follows, instructions
from rlzoo.lm.tasks.sums import Sums, last_number, sums


def test_sums_have_their_answers_and_are_held_out():
    held_out, training = sums(12, make_tokenizer())
    assert len(held_out) == 12
    assert len({*held_out, *training}) == len(held_out) + len(training) == 121
    for prompt in training:
        a, b = (int(x) for x in prompt.removeprefix("What is ").split("?")[0].split(" + "))
        assert prompt.columns == {"answer": a + b}


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("23 + 45 = 68", 1),
        ("68", 1),
        ("It is 068.", 1),
        ("68 or 67", 0),
        ("680", 0),
        ("", 0),
        ("none", 0),
    ],
)
def test_the_last_number_is_the_answer(response, score):
    assert last_number([""], [response], [68]) == [score]


def test_the_last_number_may_be_0():
    assert last_number([""] * 4, ["0", "it is 00", "10", ""], [0] * 4) == [1, 1, 0, 0]


def test_sums_are_enough_to_train_and_to_evaluate():
    with pytest.raises(ConfigError, match="largest must be "):
        Sums.Settings(largest=2)
    assert [len(x) for x in sums(3, make_tokenizer())] == [1, 3]


def test_openings_are_distinct():
    openings = sentiment.openings()
    assert len(openings) == len(set(openings)) > 100 > sentiment.HELD_OUT


def test_sentiment_is_that_of_the_response():
    pytest.importorskip("vaderSentiment")
    good, bad = sentiment.compound(["The terrible film was", "The lovely film was"], ["wonderful!", "awful."])
    assert good > 0.5 > -0.4 > bad


def test_sentiment_says_which_package_it_needs(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vaderSentiment.vaderSentiment", None)
    sentiment._analyzer.cache_clear()
    with pytest.raises(ConfigError, match=r"Sentiment needs the packages of rlzoo\[real\]"):
        sentiment.compound([""], ["good"])


FOLLOWED = {
    "words": ([3], "It’s well-known - softly.", "Rain falls -"),
    "lower case": ([], "the rain falls.", "The rain falls."),
    "capitals": ([], "THE RAIN.", "The rain."),
    "json": (["name", "age"], '{"name": "cat", "age": 3}', '{"name": "cat"}'),
    "question": ([], "Is it rain?", "It is rain."),
    "two words": (["red", "seven"], "Seven 'red' cats.", "Seven well-red cats."),
    "begins": (["green"], "Green bread.", "Bread, green."),
    "no comma": ([], "It rains. I wait.", "It rains, I wait. No."),
    "lines": ([2], "one\n\ntwo", "one"),
    "ends": (["paper"], "Bread on paper.", "Paper on bread."),
}


@pytest.mark.parametrize("kind", KINDS)
def test_instructions_are_checked(kind):
    arguments, good, bad = FOLLOWED[kind]
    assert follows([""] * 3, [good, bad, " "], [kind] * 3, [arguments] * 3) == [1, 0, 0]


def test_evaluations_have_kinds_that_training_has_not():
    tokenizer = make_tokenizer()
    training = instructions("training", 40, TRAINING, tokenizer)
    evaluation = instructions("evaluation", 40, list(KINDS), tokenizer)
    assert {x.columns["kind"] for x in evaluation} - {x.columns["kind"] for x in training} == {"lines", "ends"}
    assert instructions("training", 40, TRAINING, tokenizer) == training
    assert {*training} & {*evaluation}
    assert not {*instructions("training", 40, TRAINING, tokenizer, evaluation)} & {*evaluation}
