"""Columns of the prompts' records: reading them, and the scores that take them."""

import contextlib
import json
import pickle

import pytest
from lm_builders import make_env, make_model
from tiny import make_tokenizer

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune.data import read_prompts, save_prompts
from rlzoo.lm.reward.prompt import Prompt, columns_of
from rlzoo.lm.reward.scores import WeightedSum, call_score, call_scores, load_score, missing_columns

ROWS = [Prompt("1+1", {"answer": "2", "level": 1}), Prompt("2+2", {"answer": "4", "level": 3})]


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def right(prompts, responses, answer):
    return [float(x == y) for x, y in zip(responses, answer, strict=True)]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (lambda *texts, **columns: [float(columns == {"answer": ["2"], "level": [1]})], []),
        (lambda *texts, level: [float(level == [1])], ["level"]),
        (lambda prompts, *responses, answer: [float(responses == (answer,))], ["answer"]),
    ],
)
def test_score_with_starred_texts_gets_its_columns(score, expected):
    assert missing_columns(score, []) == expected
    assert call_score(score, "starred", ROWS[:1], ["2"]).tolist() == [1]


def test_other_columns_stay_with_their_prompt(tmp_path):
    path = lines(
        tmp_path / "p.jsonl",
        {"prompt": "1+1", "answer": "2", "level": 1},
        {"question": "2+2", "answer": "4", "level": 3},
    )
    found = read_prompts(path)
    assert found == ["1+1", "2+2"]
    assert columns_of(found) == {"answer": ["2", "4"], "level": [1, 3]}
    assert columns_of(found[1:]) == {"answer": ["4"], "level": [3]}
    assert columns_of(["plain"]) == {} == columns_of([])
    assert pickle.loads(pickle.dumps(found[1])).columns == found[1].columns


def test_columns_of_rendered_messages(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}!{% endfor %}"
    path = lines(tmp_path / "p.jsonl", {"prompt": [{"role": "user", "content": "ab"}], "answer": "c"})
    (prompt,) = read_prompts(path, tokenizer)
    assert (prompt, prompt.columns) == ("ab!", {"answer": "c"})
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=r"p.jsonl, line 1: the tokenizer has no chat template"):
        read_prompts(path, tokenizer)


def test_missing_values_of_a_table_are_none(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"prompt": ["a", "b"], "answer": ["x", None]}).to_parquet(tmp_path / "p.parquet")
    assert columns_of(read_prompts(tmp_path / "p.parquet")) == {"answer": ["x", None]}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"answer": "4"}, 'line 2: no "prompt" or "question"; it has "answer"'),
        ({"prompt": "2+2"}, 'line 2: columns beside the prompt are none, but those of the first one are "answer"'),
        ({"prompt": "2+2", "anwser": "4"}, 'line 2: columns beside the prompt are "anwser", but .* are "answer"'),
    ],
)
def test_wrong_lines(tmp_path, second, message):
    with pytest.raises(ConfigError, match=f"p.jsonl, {message}"):
        read_prompts(lines(tmp_path / "p.jsonl", {"prompt": "1+1", "answer": "2"}, second))


def test_saved_prompts_keep_their_columns(tmp_path):
    save_prompts(tmp_path / "p.jsonl", ROWS)
    assert columns_of(read_prompts(tmp_path / "p.jsonl")) == columns_of(ROWS)
    with pytest.raises(ConfigError, match=r"prompts, entry 1 cannot be saved with the run: .*set is not JSON"):
        save_prompts(tmp_path / "q.jsonl", [Prompt("a", {"answer": {1}})])
    for answer in ((1, 2), [{"x": (1,)}], {1: 2}):  # a resumed run would score by something else
        with pytest.raises(ConfigError, match=r"entry 1 cannot be .* column 'answer' would be read as something else"):
            save_prompts(tmp_path / "q.jsonl", [Prompt("a", {"answer": answer})])
    prompts = read_prompts([{"prompt": None, "question": "a", "answer": 1}])
    save_prompts(tmp_path / "q.jsonl", prompts)
    assert (read_prompts(tmp_path / "q.jsonl"), columns_of(prompts)) == (["a"], {"answer": [1]})


def test_prompts_are_not_saved_through_a_link(tmp_path):
    (tmp_path / ".p.jsonl.tmp").symlink_to(tmp_path / "elsewhere")
    save_prompts(tmp_path / "p.jsonl", ROWS)
    assert not (tmp_path / "p.jsonl").is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_scores_take_the_columns_that_they_name():
    seen = {}

    def every(prompts, responses, **columns):
        seen.update(columns)
        return [0.0] * len(responses)

    def some(prompts, responses, level, other=None):
        seen.update(level=level, other=other)
        return level

    assert call_score(right, "right", ROWS, ["2", "5"]).tolist() == [1, 0]
    assert call_score(right, "right", ROWS[::-1], ["2", "4"]).tolist() == [0, 0]
    call_score(every, "every", ROWS, ["", ""])
    assert seen == {"answer": ["2", "4"], "level": [1, 3]}
    assert call_score(some, "some", ROWS, ["", ""]).tolist() == [1, 3]
    assert seen["other"] is None
    assert call_score(lambda prompts, responses: [7, 8], "none", ROWS, ["", ""]).tolist() == [7, 8]
    total, parts = call_scores(WeightedSum({"right": (right, 2.0), "some": (some, 1.0)}), "sum", ROWS, ["2", "4"])
    assert (total.tolist(), parts["right"].tolist()) == ([3, 5], [1, 1])


def test_columns_that_a_score_needs():
    assert missing_columns(right, ROWS) == []
    assert missing_columns(right, ["1+1"]) == ["answer"]
    assert missing_columns(WeightedSum({"right": (right, 1.0)}), ["1+1"]) == ["answer"]
    assert missing_columns(lambda prompts, responses, answer=None, **columns: [], ["1+1"]) == []
    assert load_score(right) is right
    with pytest.raises(ConfigError, match=r"cannot be called with \(prompts, responses\)"):
        load_score(lambda responses: [])


@pytest.mark.parametrize(
    ("score", "column", "clashes"),
    [
        (lambda prompts, responses, **columns: [0.0] * len(responses), "responses", True),
        (lambda completions, **columns: [0.0] * len(completions), "prompts", True),
        (lambda asked, said, **columns: [0.0] * len(said), "said", True),
        (lambda asked, said, **columns: [0.0] * len(said), "responses", False),
        (lambda prompts, responses: [0.0] * len(responses), "responses", False),
    ],
)
def test_column_with_the_name_of_an_argument(score, column, clashes):
    prompts, model = [Prompt("ab", {column: "c"})], make_model()
    fault = f"^prompts: the column '{column}' has the name of an argument of reward score for prompts or responses"
    for fn in (score, WeightedSum({"score": (score, 1.0)})):
        with pytest.raises(ConfigError, match=fault) if clashes else contextlib.nullcontext():
            make_env(model, prompts, fn)
    if not clashes:
        assert call_score(score, "score", prompts, ["c"]).tolist() == [0]


@pytest.mark.parametrize(("answers", "number"), [("cc-", 3), ("-cc", 1)])
def test_a_prompt_that_lacks_a_column_is_named(answers, number):
    prompts = [Prompt(x, {} if answer == "-" else {"answer": answer}) for x, answer in zip("abd", answers, strict=True)]
    fault = f"^prompts: prompt {number} \\('{prompts[number - 1]}'\\) lacks a column that others have: 'answer'$"
    for score in (right, lambda prompts, responses, **columns: [0.0] * len(responses)):
        with pytest.raises(ConfigError, match=fault):
            make_env(make_model(), prompts, score)


def test_scores_of_trl_are_called_by_the_names_of_their_arguments():
    """In any order, with or without the prompts; by position, the first would get the prompts as completions."""

    def right(completions, answer, **kwargs):
        assert kwargs.keys() == {"prompts", "level"}
        return [float(a in c) for c, a in zip(completions, answer, strict=True)]

    def alone(completions):
        return [float(len(c)) for c in completions]

    def usual(prompts, completions, **kwargs):
        return [float(len(p + c)) for p, c in zip(prompts, completions, strict=True)]

    responses = ["2", "none"]
    assert call_score(load_score(right), "right", ROWS, responses).tolist() == [1, 0]
    assert call_score(load_score(alone), "alone", ROWS, responses).tolist() == [1, 4]
    assert call_score(load_score(usual), "usual", ROWS, responses).tolist() == [
        len(p) + len(c) for p, c in zip(ROWS, responses, strict=True)
    ]
    assert missing_columns(lambda completions, completion_ids, **kwargs: [], ROWS) == ["completion_ids"]
