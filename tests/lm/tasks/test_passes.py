"""pass@k of a run, and columns of prompts through a run: in its files, its evaluations, and when it is resumed."""

import json

import numpy as np
import pytest
import tiny

import rlzoo
from rlzoo import cli
from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.reward.pass_at_k import pass_at_k
from rlzoo.runs.loop import Trainer

PROMPTS = [{"prompt": "ab", "answer": "c"}, {"prompt": "hello", "answer": "x"}, {"prompt": "Q", "answer": "e"}]


def contains(prompts, responses, answer):
    """1 where the response has the answer somewhere."""
    return [float(right in text) for right, text in zip(answer, responses, strict=True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tiny.save_lm(folder / "model")
    return rlzoo.train(
        "ppo-clip", "Prompts", model=str(folder / "model"), prompts=PROMPTS, reward=contains, out=folder / "run",
        total_steps=60, responses_per_batch=6, responses_per_prompt=2, max_new_tokens=12, eval_episodes=3,
        final_eval_episodes=3,
    )  # fmt: skip


def test_pass_at_k_of_a_run(run):
    evaluation = rlzoo.evaluate(run, 60, pass_k=5)
    right = [int(sum(evaluation.returns[i::3])) for i in range(3)]
    assert 0 < sum(right) < 60
    assert evaluation.further["pass@1"] == pytest.approx(np.mean(evaluation.returns))
    assert evaluation.further["pass@5"] == pytest.approx(np.mean([pass_at_k(20, c, 5) for c in right]))
    assert evaluation.further["pass@5"] > evaluation.further["pass@1"]
    plain = rlzoo.evaluate(run, 60)
    assert plain.returns.tolist() == evaluation.returns.tolist()
    assert "pass@1" not in plain.further


def rewarded(conversations):
    """No reply, and a reward for the turn."""
    return [(None, 1.0)] * len(conversations)


def never(prompts, responses):
    return [0.0] * len(responses)


def test_pass_at_k_of_a_conversation_counts_scores_and_not_rewards_of_turns(run, tmp_path):
    task = {"prompts": ["ab"], "reward": never, "reply": rewarded, "stop_tokens": tuple("abcdefghij")}
    settings = {"model": str(run.path / "start"), "responses_per_batch": 4, "responses_per_prompt": 2}
    config = rlzoo.make_config("ppo-clip", "Prompts", max_new_tokens=12, **settings, **task)
    evaluation = Trainer(config).task.evaluate_passes(8, 4, seed=0)
    assert evaluation.returns.max() == 1
    assert evaluation.further["pass@4"] == 0


def test_only_prompts_with_k_responses_each_are_asked(run):
    assert rlzoo.evaluate(run, 7, pass_k=7).further["pass@7"] in (0.0, 1.0)
    asked = {x["prompt"] for x in rlzoo.evaluate(run, 7, pass_k=3).further["samples"]}
    assert asked == {"ab", "hello"}


def test_command(run, capsys):
    assert cli.main(["eval", str(run.path), "--episodes", "6", "--pass-k", "2"]) == 0
    assert ", pass@1 0" in capsys.readouterr().out
    assert cli.main(["eval", str(run.path), "--episodes", "6", "--pass-k", "2", "--json"]) == 0
    assert {"pass@1", "pass@2"} <= json.loads(capsys.readouterr().out).keys()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"pass_k": 0}, r"pass_k must be in \[1, 6\], the number of responses; got 0"),
        ({"pass_k": 7}, r"pass_k must be in \[1, 6\], the number of responses; got 7"),
        ({"pass_k": 2, "deterministic": True}, "pass_k and deterministic contradict each other"),
    ],
)
def test_wrong_use(run, more, message):
    with pytest.raises(ConfigError, match=message):
        rlzoo.evaluate(run, 6, **more)


def test_control_has_no_pass_at_k(tmp_path):
    run = rlzoo.train("ppo-clip", "CartPole-v1", total_steps=256, final_eval_episodes=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="pass_k is for language tasks; CartPole-v1 is none"):
        rlzoo.evaluate(run, 6, pass_k=2)


def test_a_run_keeps_the_columns(run):
    lines = [json.loads(line) for line in (run.path / "prompts.jsonl").read_text().splitlines()]
    assert lines == PROMPTS
    assert rlzoo.resume(run, total_steps=80).steps()[-1] >= 80


def test_prompts_without_a_column_that_the_score_takes(run):
    settings = {"model": str(run.path / "start"), "prompts": ["ab"], "reward": contains, "max_new_tokens": 8}
    message = "reward contains takes a column 'answer' of the prompts; they have none: add it to the prompts, or give"
    with pytest.raises(ConfigError, match=message):
        rlzoo.train("ppo-clip", "Prompts", out="never", **settings)
