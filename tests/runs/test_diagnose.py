"""What diagnose names: each rule against a record that shows it, and a healthy one that does not; and its page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import short_runs

from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.runs import registry
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.diagnose import RULES, History, diagnose, findings
from rlzoo.runs.run import Run

N = 100
T = np.linspace(0, 1, N)
ROOT = Path(__file__).parents[2]


def constant(x):
    return np.full(N, float(x))


def ramp(start, end):
    return start + (end - start) * T


CONTROL = {
    "step": ramp(1024, 102_400),
    "mean_return": ramp(-1200, -150),
    "mean_length": constant(200),
    "kl": constant(0.01),
    "entropy": ramp(1.4, 0.6),
    "explained_variance": ramp(0.3, 0.95),
    "grad_norm": ramp(0.4, 1.5),
}
ALGORITHMS = {
    "trpo": {**CONTROL, "accepted": constant(1), "backtracks": constant(1), "cg_residual": constant(0.15)},
    "ppo-clip": {**CONTROL, "clip_fraction": constant(0.1), "gradient_steps": constant(40)},
    "ppo-penalty": {**CONTROL, "kl_coef": constant(1)},
    "language": {
        **CONTROL,
        "mean_return": ramp(0.3, 0.95),
        "mean_length": ramp(24, 20),
        "score": ramp(0.3, 0.95),
        "score_std": ramp(0.4, 0.1),
        "kl_reference": ramp(0, 8),
        "beta": constant(0.05),
        "ended": ramp(0.6, 1),
    },
}
NAMES = {
    algorithm: {name for env in ("CartPole-v1", "RandomWalks") for name in make_config(algorithm, env).to_dict()}
    for algorithm in registry.ALGORITHMS
}
SETTINGS = dict.fromkeys(set().union(*NAMES.values())) | {
    "max_kl": "linear:0.02:0",
    "kl_coef_max": 1e4,
    "max_grad_norm": 0.5,
    "cg_iters": 10,
}
STEADY = {"mean_return": np.array([-1200.0, -400, -150]), "std_return": np.array([300.0, 250, 120])}
SCORES = {"mean_return": np.array([0.3, 0.6, 0.95]), "std_return": np.array([0.4, 0.3, 0.1])}


def record(kind="trpo", evaluations=None, settings=None, threshold=None, **changes):
    metrics = {name: np.asarray(x, float) for name, x in {**ALGORITHMS[kind], **changes}.items()}
    evaluations = evaluations or (SCORES if kind == "language" else STEADY)
    return History(metrics, evaluations, SETTINGS | (settings or {}), threshold)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_nothing_looks_wrong_in_a_healthy_run(kind):
    assert findings(record(kind)) == []


def test_few_products_are_no_fault_of_a_language_model():
    few = {"cg_residual": constant(0.9), "settings": {"cg_iters": 2}}
    assert findings(record("language", **few)) == []
    assert [x.name for x in findings(record("trpo", **few))] == ["too-few-cg-iterations"]


SICK = {
    "not-finite": record(kl=np.where(T > 0.97, np.nan, 0.01)),
    "no-episode-ends": record(mean_return=constant(np.nan)),
    "all-returns-equal": record(
        mean_return=constant(-200), evaluations={"mean_return": constant(-200), "std_return": constant(0)}
    ),
    "returns-fall": record(mean_return=np.where(T < 0.5, ramp(-1200, 900), -1000)),
    "no-progress": record(mean_return=-1200 + 30 * np.sin(40 * T)),
    "gamma-too-small": record(settings={"gamma": 0.0}),
    "step-too-large": record(kl=constant(0.06)),
    "step-too-small": record("ppo-clip", kl=constant(1e-7)),
    "line-search-fails": record(accepted=np.arange(N) % 2),
    "too-few-cg-iterations": record(cg_residual=constant(0.6), settings={"cg_iters": 1}),
    "clipping-too-often": record("ppo-clip", clip_fraction=constant(0.5)),
    "never-clipping": record("ppo-clip", clip_fraction=constant(0)),
    "penalty-at-its-bound": record("ppo-penalty", kl_coef=np.minimum(2.0 ** np.arange(N), 1e4)),
    "updates-cut-short": record("ppo-clip", gradient_steps=np.where(T < 0.1, 40, 2), settings={"stop_kl": 0.01}),
    "entropy-collapses": record(entropy=np.exp(-30 * T)),
    "never-explores": record(entropy=constant(0)),
    "value-lags": record(explained_variance=constant(-0.2)),
    "gradient-grows": record(grad_norm=10 ** (3 * T)),
    "gradient-always-clipped": record("ppo-clip", grad_norm=constant(300)),
    "responses-never-stop": record("language", ended=ramp(0.6, -0.1).clip(0)),
    "responses-collapse": record("language", mean_length=ramp(24, 3)),
    "scores-all-equal": record("language", score_std=np.where(T < 0.2, 0.3, 0)),
    "kl-runs-away": record("language", kl_reference=ramp(0, 90), score=constant(0.3), mean_return=constant(0.3)),
    "reward-hacking": record("language", kl_reference=ramp(0, 90)),
}


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_each_rule_names_what_it_is_for(name):
    (found,) = (x for x in findings(SICK[name]) if x.name == name)
    assert re.search(r"\d|not a number", found.seen)
    assert (found.page, bool(found.reason), bool(found.change)) == (f"docs/metrics.md#{name}", True, True)


@pytest.mark.parametrize("algorithm", NAMES)
def test_findings_name_settings_that_the_run_has(algorithm):
    known = {name for rule in RULES for name in re.findall(r"`(\w+)`", rule.change)}
    assert known <= SETTINGS.keys()
    for sick in SICK.values():
        settings = {name: x for name, x in sick.settings.items() if name in NAMES[algorithm]}
        for found in findings(replace(sick, settings=settings)):
            assert known.intersection(re.findall(r"\w+", found.change)) <= settings.keys()
            assert not re.search(r"`|  |^;|;$|(or|,)(;|$)", found.change), found.change


def test_settings_to_turn():
    rule = next(x for x in RULES if x.name == "entropy-collapses")
    assert rule.change_of(SETTINGS) == (
        "ent_coef (0.01); lower learning_rate, max_kl or step_kl; a higher log_std_init for Box actions"
    )
    assert rule.change_of({"max_kl": 0.01, "step_kl": 1}) == "lower max_kl or step_kl"


def test_a_run_that_learned_nothing_is_named():
    """Pendulum with gamma 0: the return of a random policy, to the end."""
    returns = {"mean_return": np.full(5, -1210.0), "std_return": np.full(5, 290.0)}
    found = findings(record("ppo-clip", returns, {"gamma": 0.0}, mean_return=-1200 + 25 * np.cos(30 * T)))
    assert [x.name for x in found] == ["no-progress", "gamma-too-small"]
    assert "began at -1175 and is -12" in found[0].seen


def test_reward_hacking_is_also_seen_in_evaluations_that_fall():
    falling = {"mean_return": np.array([0.3, 0.8, 0.4]), "std_return": np.full(3, 0.2)}
    (found,) = findings(record("language", evaluations=falling))
    assert found.seen == "the score rises while the evaluations fall from 0.8 to 0.4"


def test_the_noise_of_evaluations_is_no_reward_hacking():
    noisy = {"mean_return": np.array([0.6, 0.65, 0.45]), "std_return": np.full(3, 0.5)}  # of 20 responses: 0.11
    assert findings(record("language", evaluations=noisy)) == []
    (found,) = findings(record("language", evaluations=noisy, settings={"eval_episodes": 500}))
    assert found.name == "reward-hacking"


SHORT = {
    "control": ("ppo-clip", {"num_envs": 8, "num_steps": 100, "minibatch_size": 60, "epochs": 2}),  # 28 steps
    "language": ("language", {"responses_per_batch": 64, "minibatch_responses": 16, "epochs": 4, "num_envs": 1}),
    "whole buffers": ("ppo-clip", {"num_envs": 8, "num_steps": 100, "minibatch_size": "all", "epochs": 16}),
}


@pytest.mark.parametrize("kind", SHORT)
def test_updates_that_are_all_cut_short(kind):
    kind, settings = SHORT[kind]
    for steps, names in ((1, ["updates-cut-short"]), (6, [])):
        found = findings(record(kind, gradient_steps=constant(steps), settings={**settings, "stop_kl": 0.01}))
        assert [x.name for x in found] == names
        assert all(re.search(r"after 1 of (28|16) steps", x.seen) for x in found)


def test_returns_of_training_are_not_compared_with_evaluations_in_another_unit():
    scaled = {"mean_return": ramp(0.003, 0.009), "settings": {"reward": "own.py:score"}}
    scaled["evaluations"] = SCORES | {"exact": np.ones(3)}
    assert findings(record("language", **scaled)) == []
    scaled["settings"]["reward"] = None
    assert [x.name for x in findings(record("language", **scaled))] == ["no-progress"]


def test_a_policy_that_waits_for_its_value_takes_no_small_steps():
    waits = T < 0.6
    moves = {"learning_rate": ~waits * 3e-4, "kl": ~waits * 0.01, "clip_fraction": ~waits * 0.1}
    assert findings(record("ppo-clip", **moves)) == []
    still = {**moves, "kl": constant(0), "clip_fraction": constant(0)}
    assert [x.name for x in findings(record("ppo-clip", **still))] == ["step-too-small", "never-clipping"]


def test_a_large_gradient_of_a_policy_alone_is_not_that_of_a_value():
    large, settings = record("trpo", grad_norm=constant(300)), {x: y for x, y in SETTINGS.items() if x != "vf_coef"}
    assert findings(replace(large, settings=settings)) == []


def test_responses_of_a_fixed_length_need_not_stop():
    assert findings(record("language", ended=constant(0.03))) == []
    (found,) = findings(record("language", ended=constant(0.03), settings={"missing_eos_penalty": 1.0}))
    assert found.name == "responses-never-stop"


def test_one_huge_update_is_named():
    (found,) = findings(record(kl=np.where(np.arange(N) == 3, 4.0, 0.01)))
    assert (found.name, found.seen) == ("step-too-large", "one update had a KL of 4")


def test_a_solved_run_may_have_a_value_that_explains_nothing():
    solved = {"mean_return": constant(-150), "std_return": np.full(3, 5.0)}
    assert findings(record(explained_variance=constant(-3), evaluations=solved)) == []
    assert findings(record(explained_variance=constant(-3), threshold=-200.0)) == []


@pytest.mark.parametrize("settings", [{"baseline": False}, {"estimator": "leave-one-out"}])
def test_without_a_value_nothing_lags_or_takes_the_gradient(settings):
    settings["max_grad_norm"] = 0.5
    metrics = {"explained_variance": constant(0), "grad_norm": constant(30)}
    assert findings(record(**metrics, settings={**settings, "vf_coef": 0.0})) == []
    (found,) = findings(record(**metrics, settings={**settings, "vf_coef": 1.0}))
    assert found.name == "gradient-always-clipped"


def test_command(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path / "run")
    assert main(["diagnose", str(run.path)]) == 0
    assert capsys.readouterr().out.startswith(f"{run.path}, up to step ")
    lines = [{**line, "kl_k3": 0.5} for line in run.metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["diagnose", str(run.path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["step"] == run.steps()[-1]
    assert "step-too-large" in [x["name"] for x in answer["findings"]]
    assert main(["diagnose", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "step-too-large: the median KL of an update is 0.5" in out
    assert "page: docs/metrics.md#step-too-large" in out
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_run_without_metrics_is_an_error(tmp_path):
    run = Run.create(tmp_path / "run", short_runs.quick_run(tmp_path / "other").read_config())
    with pytest.raises(RunError, match="has no metrics yet"):
        diagnose(run)


def test_page_has_a_section_for_each_rule():
    page = (ROOT / "docs/metrics.md").read_text()
    sections = re.findall(r"^### ([\w-]+)\n\n(.+?)\n\nChange: (.+?)\.$", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _, _ in sections] == [rule.name for rule in RULES]
    for rule, (_, text, change) in zip(RULES, sections, strict=True):
        assert rule.reason in " ".join(text.split())
        assert rule.change == " ".join(change.split())


def test_settings_without_effect_are_not_advised():
    settings = make_config("trpo", "CartPole-v1").to_dict()
    (found,) = findings(replace(record(kl=constant(1e-7)), settings=settings))
    assert (found.name, found.change) == ("step-too-small", "raise epochs or max_kl")
