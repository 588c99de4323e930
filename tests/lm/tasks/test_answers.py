"""The tasks whose answers can be checked: their puzzles, their verifiers, and the texts for SFT."""

import time

import numpy as np
import pytest

from rlzoo.lm.finetune.sft_checkpoint import character_tokenizer, completed
from rlzoo.lm.reward.expressions import value_of
from rlzoo.lm.reward.prompt import columns_of
from rlzoo.lm.reward.turns import Conversation
from rlzoo.lm.tasks import arithmetic, calculator, countdown

HOSTILE = [
    "", "(" * 10**6, "9**9**9**9", "1/0", "1/(1-1)", "__import__('os').abort()", "\ud800", "9" * 10**6, "1e309", "nan",
]  # fmt: skip


def test_sums():
    sums = arithmetic.sums()
    assert len(sums) == len(set(sums)) == 2500
    assert all(str(eval(x[:-1])) == x.columns["answer"] for x in sums)
    assert sums == arithmetic.sums()
    assert columns_of(sums[:1])["answer"] == [sums[0].columns["answer"]]
    right = arithmetic.is_answer(["1+1="] * 4, ["2", "3", "2 ", "02"], ["2"] * 4)
    assert right == [1, 0, 0, 0]


def test_texts_for_sums_are_often_wrong_by_a_little():
    examples = completed(arithmetic.sums(), 2000, arithmetic.attempt)
    errors = np.array([int(x["completion"]) - eval(x["prompt"][:-1]) for x in examples])
    assert np.mean(errors == 0) == pytest.approx(arithmetic.RIGHT, abs=0.04)
    assert set(np.abs(errors)) <= {0, 1, 2, 10} | {abs(x) for x in range(10)}


def test_puzzles_have_a_solution():
    puzzles = countdown.puzzles()
    assert len(puzzles) == len(set(puzzles)) == countdown.PUZZLES
    examples = completed(puzzles, 400, countdown.attempt)
    by_text = {str(x): x.columns for x in puzzles}
    columns = [by_text[x["prompt"]] for x in examples]
    solved = countdown.reaches(
        [x["prompt"] for x in examples],
        [x["completion"] for x in examples],
        [x["numbers"] for x in columns],
        [x["target"] for x in columns],
    )
    assert solved == [float(eval(x["completion"]) == y["target"]) for x, y in zip(examples, columns, strict=True)]
    assert np.mean(solved) > countdown.RIGHT


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("3*7-8", 1), ("(3*7)-8", 1), ("7*3-8", 1), ("3*7 - 8", 1), ("13", 0), ("8+3+2", 0), ("3*7-8+0", 0),
        ("21-8", 0), ("3*7-8*1", 0), ("3+3+7", 0), ("3*7-8=13", 0), ("3*7-08", 0), ("7+8-3+1", 0), ("7+3*8/4", 0),
    ],
)  # fmt: skip
def test_an_expression_reaches_the_target_with_the_given_numbers(response, score):
    assert countdown.reaches(["3 7 8>13="], [response], [[3, 7, 8]], [13]) == [score]


def test_numbers_may_be_left_out():
    assert countdown.reaches(["3 7 8>15="], ["7+8"], [[3, 7, 8]], [15]) == [1]


@pytest.mark.parametrize("response", HOSTILE, ids=lambda x: f"{x[:12]!r} of {len(x)}")
def test_hostile_answers_score_0_at_once(response):
    start = time.process_time()
    assert arithmetic.is_answer(["1+1="], [response], ["2"]) == [0]
    assert countdown.reaches(["3 7 8>13="], [response], [[3, 7, 8]], [13]) == [0]
    assert calculator.is_answer(["12*34:"], [response], ["408"], [[response]]) == [0]
    (said,) = calculator.calculate([Conversation("12*34:", [response + "="])])
    assert said == ("?;" if value_of(response) is None else f"{value_of(response)};")
    assert time.process_time() - start < 5


def test_products_and_the_calculator():
    products = calculator.products()
    assert len(products) == len(set(products)) == calculator.PRODUCTS
    assert all(str(eval(x[:-1])) == x.columns["answer"] for x in products)
    conversations = [["47*86="], ["4042"], ["4*="], ["47*86=", "4042;", "4042"], ["1-2="]]
    said = calculator.calculate([Conversation("47*86:", turns) for turns in conversations])
    assert said == ["4042;", None, "?;", None, "-1;"]
    broken = calculator.noise([Conversation("47*86:", ["47*86="]), Conversation("47*86:", ["4042"])])
    assert broken[0] != "4042;"
    assert broken[1] is None
    turns = [["47*86=", "4042;", "4042"], ["4042"], ["47*86=", "4042;", "404"]]
    assert calculator.is_answer(["47*86:"] * 3, [""] * 3, ["4042"] * 3, turns) == [1, 1, 0]


@pytest.mark.parametrize(
    ("task", "prompts", "characters"),
    [
        (arithmetic, arithmetic.sums, "0123456789+="),
        (countdown, countdown.puzzles, "0123456789 +-*/()>="),
        (calculator, calculator.products, "0123456789*=:;?"),
    ],
)
def test_every_text_has_tokens(task, prompts, characters):
    tokenizer = character_tokenizer(characters)
    for x in completed(prompts(), 300, task.attempt):
        text = x["prompt"] + x["completion"]
        assert tokenizer.decode(tokenizer(text).input_ids) == text
