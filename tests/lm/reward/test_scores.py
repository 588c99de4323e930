"""Finding the function that scores responses, and holding what it gives to what was asked."""

import subprocess
import sys
from collections import deque

import numpy as np
import pytest
import torch

from rlzoo.core.system.errors import ConfigError, EnvError
from rlzoo.lm.reward.scores import WeightedSum, call_score, call_scores, load_score

PROMPTS, RESPONSES = ["a", "b", "c"], ["first", "second", "third"]

FUNCTIONS = """\
import json
import helper

LENGTHS = {"a": 1}

def length(prompts, responses):
    return [helper.measure(x) for x in responses]

def one(responses):
    return [0.0 for _ in responses]

def broken(prompts, responses):
    raise ValueError("no\\nscore")

def deep(prompts, responses):
    return [helper.parsed(x) for x in responses]

def lazy(prompts, responses):
    for x in responses:
        yield 1 / (x != "second")

def leave(prompts, responses):
    raise SystemExit("enough")
"""

HELPER = """\
import json

def measure(text):
    return len(text)

def parsed(text):
    return json.loads(text)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two modules in the current directory, forgotten afterwards."""
    (tmp_path / "scorers.py").write_text(FUNCTIONS)
    (tmp_path / "helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name.removesuffix('.py')}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize("spec", ["scorers:length", "scorers.py:length", "./scorers.py:length", "{}/scorers.py:length"])
def test_function_of_a_module_or_of_a_file(folder, spec):
    path = list(sys.path)
    score = load_score(spec.format(folder))
    assert score(PROMPTS, RESPONSES) == [5, 6, 5]
    assert sys.path == path


def test_file_elsewhere_brings_its_neighbours_and_hides_no_module(folder, monkeypatch):
    package = folder / "mine"
    package.mkdir()
    (package / "json.py").write_text("import beside\n\ndef score(p, r):\n    return [beside.SCORE for _ in r]\n")
    (package / "beside.py").write_text("SCORE = 3\n")
    score = load_score("mine/json.py:score")
    assert score(PROMPTS, RESPONSES) == [3, 3, 3]
    assert hasattr(sys.modules["json"], "loads")
    del sys.modules["beside"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("scorers", "is neither the directory of a reward model nor module:function nor file.py:function"),
        ("models/rm", "is neither the directory of a reward model"),
        (":length", "is neither the directory of a reward model"),
        ("scorers:", "is neither the directory of a reward model"),
        ("scorer:length", "no module 'scorer'; did you mean 'scorers'?"),
        ("scorers.part:length", "no module 'scorers.part'$"),
        ("rlzoo.lm.reward.score:length", "no module 'rlzoo.lm.reward.score'; did you mean 'rlzoo.lm.reward.scores'?"),
        ("rlzo.lm.scores:length", "no module 'rlzo'; did you mean 'rlzoo'?"),
        ("scorer.py:length", "no file 'scorer.py'; did you mean 'scorers.py'?"),
        ("absent/scorers.py:length", "no file 'absent/scorers.py'$"),
        ("scorers:lenght", "no function 'lenght'; did you mean 'length'?"),
        ("scorers.py:lenght", "no function 'lenght'; did you mean 'length'?"),
        ("scorers:LENGTHS", "LENGTHS is not a function but of type dict"),
        ("scorers:one", r"cannot be called with \(prompts, responses\): too many positional arguments"),
    ],
)
def test_score_that_is_not_there_is_an_error(folder, spec, message):
    with pytest.raises(ConfigError, match=f"^reward '{spec}'.*{message}".replace("?", r"\?")):
        load_score(spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef score(prompts, responses:\n", r"SyntaxError: .* \(.*bad_reward.py:2\)"),
        ("\nimport no_such_library\n", r"ModuleNotFoundError: No module named 'no_such_library' \(.*bad_reward.py:2\)"),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: Expecting .* \(.*bad_reward.py:3\)"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \(.*bad_reward.py:1\)"),
    ],
)
@pytest.mark.parametrize("spec", ["bad_reward:score", "bad_reward.py:score"])
def test_module_that_cannot_be_imported_is_an_error_that_names_the_line(folder, spec, text, message):
    (folder / "bad_reward.py").write_text(text)
    with pytest.raises(ConfigError, match=f"^reward '{spec}': .*{message}$"):
        load_score(spec)
    assert "bad_reward.py" not in sys.modules


@pytest.mark.parametrize(
    "result",
    [
        [1, 0.5, -2],
        (1.0, 0.5, -2.0),
        deque([1, 0.5, -2]),
        np.array([1, 0.5, -2]),
        np.array([1, 0.5, -2], np.float16),
        torch.tensor([1, 0.5, -2], requires_grad=True),
        torch.tensor([1, 0.5, -2], dtype=torch.bfloat16),
        [torch.tensor(1), np.float32(0.5), torch.tensor([-2.0], requires_grad=True)],
        (x for x in (1, 0.5, -2)),
        map(float, ["1", "0.5", "-2"]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_numbers_in_many_forms(result):
    scores = call_score(lambda prompts, responses: result, "r", PROMPTS, RESPONSES)
    assert torch.equal(scores, torch.tensor([1, 0.5, -2]))
    assert scores.dtype == torch.float32
    assert not scores.requires_grad


def test_truth_values_are_numbers():
    scores = call_score(lambda prompts, responses: [x > "g" for x in responses], "r", PROMPTS, RESPONSES)
    assert torch.equal(scores, torch.tensor([0.0, 1, 1]))


def test_no_responses_have_no_scores():
    assert call_score(lambda prompts, responses: [], "r", [], []).shape == (0,)


def test_function_cannot_change_the_lists():
    prompts, responses = list(PROMPTS), list(RESPONSES)

    def greedy(prompts, responses):
        prompts.clear()
        return [len(responses.pop()) for _ in range(3)]

    assert call_score(greedy, "r", prompts, responses).tolist() == [5, 6, 5]
    assert (prompts, responses) == (PROMPTS, RESPONSES)


def endless():
    while True:
        yield 1.0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1, 2], "must return 3 numbers, one for each response, returned 2"),
        ([1, 2, 3, 4, 5], "must return 3 numbers, one for each response, returned 5"),
        (torch.zeros(2), "must return 3 numbers, one for each response, returned 2"),
        ((x for x in [1]), "must return 3 numbers, one for each response, returned 1"),
        (endless(), "must return 3 numbers, one for each response, returned more than 3"),
        (None, "must return 3 numbers, one for each response, returned None"),
        (0.5, "must return 3 numbers, one for each response, returned 0.5"),
        (torch.tensor(0.5), r"must return 3 numbers, one for each response, returned tensor\(0.5000\)"),
        ("123", "must return 3 numbers, one for each response, returned '123'"),
        ({0: 1.0, 1: 2.0, 2: 3.0}, "must return 3 numbers, one for each response, returned {0: 1.0, 1: 2.0, 2: 3.0}"),
        ([1, None, 3], r"score of response 1 \('second'\) is None, not a number"),
        (["1", "2", "3"], r"score of response 0 \('first'\) is '1', not a number"),
        (torch.zeros(3, 2), r"score of response 0 \('first'\) is \[0.0, 0.0\], not a number"),
        ([1, 2, torch.zeros(2)], r"score of response 2 \('third'\) is tensor\(\[0., 0.\]\), not a number"),
        ([1, 2, 3j], r"score of response 2 \('third'\) is 3j, not a number"),
        ([1, float("nan"), 3], r"score of response 1 \('second'\) is nan, not a finite 32-bit number"),
        (np.array([1, 2, -np.inf]), r"score of response 2 \('third'\) is -inf, not a finite 32-bit number"),
        ([1e300, 2, 3], r"score of response 0 \('first'\) is 1e\+300, not a finite 32-bit number"),
        ([10**400, 2, 3], r"score of response 0 \('first'\) is inf, not a finite 32-bit number"),
    ],
)
def test_anything_but_one_finite_number_a_response_is_an_error(result, message):
    with pytest.raises(EnvError, match=f"^reward r: {message}$"):
        call_score(lambda prompts, responses: result, "r", PROMPTS, RESPONSES)


def test_sum_of_scores_that_overflows_is_an_error():
    large = WeightedSum({x: (lambda prompts, responses: [0, 2e38, 0], weight) for x, weight in (("a", 1), ("b", 0.9))})
    with pytest.raises(EnvError, match=r"^reward r: score of response 1 \('second'\) is 3.8e\+38, not a finite 32-bit"):
        call_scores(large, "r", PROMPTS, RESPONSES)


def test_response_at_fault_is_shown_in_one_line_of_sixty_characters():
    response = "line one\n" + "x" * 100
    with pytest.raises(EnvError) as error:
        call_score(lambda prompts, responses: [float("nan")], "r", ["p"], [response])
    shown = "line one\\n" + "x" * 51
    assert str(error.value) == f"reward r: score of response 0 ('{shown}') is nan, not a finite 32-bit number"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", r"ValueError: no score \(.*scorers.py:13\)"),
        ("deep", r"JSONDecodeError: Expecting value: line 1 column 1 \(char 0\) \(.*helper.py:7\)"),
        ("lazy", r"ZeroDivisionError: division by zero \(.*scorers.py:20\)"),
        ("leave", r"SystemExit: enough \(.*scorers.py:23\)"),
    ],
)
def test_exception_names_the_line_of_the_users_code(folder, name, message):
    with pytest.raises(EnvError, match=rf"^reward scorers.py:{name}: {message}$") as error:
        call_score(load_score(f"scorers.py:{name}"), f"scorers.py:{name}", PROMPTS, RESPONSES)
    assert error.value.__cause__ is not None


def test_function_that_never_ran_is_named_by_where_it_is_defined(folder):
    one = load_score("scorers:length").__globals__["one"]
    with pytest.raises(EnvError, match=r"^reward one: TypeError: one\(\) takes 1 .* \(.*scorers.py:9\)$"):
        call_score(one, "one", PROMPTS, RESPONSES)


def test_built_in_function_has_no_place():
    with pytest.raises(EnvError, match=r"^reward divmod: TypeError: unsupported operand .*: 'list' and 'list'$"):
        call_score(divmod, "divmod", PROMPTS, RESPONSES)


def test_interruption_is_not_an_error_of_the_score():
    def interrupted(prompts, responses):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_score(interrupted, "r", PROMPTS, RESPONSES)


def test_import_and_load_leave_the_heavy_libraries_alone(folder):
    code = """
import sys
from rlzoo.lm.reward.scores import load_score
load_score("scorers:length")
sys.exit(any(name in sys.modules for name in ("torch", "transformers")))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
