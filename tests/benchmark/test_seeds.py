"""The same run with several seeds: ordinary runs, in parallel, that can be stopped and continued."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import short_runs

from rlzoo.benchmark.seeds import _progress, create_runs, seed_runs, train_seeds
from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.logs.display import LineDisplay
from rlzoo.runs.run import Run
from rlzoo.runs.train import train

SETTINGS = {name: x for name, x in short_runs.PPO.items() if name not in ("env", "algorithm")}
OPTIONS = [
    *("--total-steps", "600", "--num-envs", "4", "--num-steps", "25", "--eval-episodes", "3", "--hidden", "8"),
    *("--epochs", "1", "--minibatch-size", "100", "--no-preset"),
]


def config(**settings):
    return make_config("ppo-clip", "CartPole-v1", **SETTINGS | settings)


def test_each_seed_is_a_run_as_alone(tmp_path):
    runs = create_runs(tmp_path / "several", config(), [1, 2])
    assert train_seeds(runs, jobs=2) == {}
    assert [run.path.name for run in seed_runs(tmp_path / "several").values()] == ["seed-1", "seed-2"]
    alone = train("ppo-clip", "CartPole-v1", seed=2, preset=False, out=tmp_path / "alone", **SETTINGS)
    assert short_runs.outcome(runs[2]) == short_runs.outcome(alone)
    assert short_runs.weights(runs[1]) != short_runs.weights(runs[2])


def test_progress_of_language_models_is_in_tokens_and_scores():
    runs = {1: {"step": 30, "mean_return": 0.5, "kl_reference": 2.0}, 2: {"step": 50, "mean_return": 1.0}, 3: None}
    runs = {seed: SimpleNamespace(last_metrics=lambda x=x: x) for seed, x in runs.items()}
    record = _progress(runs, dict.fromkeys(runs, 40), {2})
    assert record == {"step": 70, "mean_return": 0.75, "kl_reference": 2.0}
    shown = io.StringIO()
    display = LineDisplay(shown)
    display.start(0, 120)
    display.update(record)
    assert " 70/120 tokens  score     0.75  kl_ref 2 " in shown.getvalue()
    assert _progress({3: runs[3]}, {3: 40}, set()) == {"step": 0, "mean_return": None}


def test_runs_of_the_same_settings_are_kept_and_others_refused(tmp_path):
    (tmp_path / "report.md").write_text("none of rlzoo's")
    create_runs(tmp_path, config(), [1], overwrite=True)
    assert (tmp_path / "report.md").exists()
    assert list(create_runs(tmp_path, config(), [1, 3])) == [1, 3]
    with pytest.raises(RunError, match=r"seed-1 has another gamma \(0.99, not 0.5\): give another --out"):
        create_runs(tmp_path, config(gamma=0.5), [1])
    create_runs(tmp_path, config(gamma=0.5), [1], overwrite=True)
    assert not (tmp_path / "report.md").exists()
    assert Run(tmp_path / "seed-1").read_config().algorithm.estimator.gamma == 0.5
    with pytest.raises(RunError, match="holds a run: give another --out"):
        create_runs(tmp_path / "seed-1", config(), [1])


def test_folder_of_seeds_is_no_run_and_a_range_has_an_end(tmp_path, capsys):
    create_runs(tmp_path, config(), [1, 2])
    assert main(["eval", str(tmp_path)]) == 2
    assert f"it holds the runs of several seeds: name one, such as {tmp_path}/seed-1" in capsys.readouterr().err
    assert main(["train", "ppo", "CartPole-v1", "--seed", "1-60000", "--out", str(tmp_path / "more")]) == 2
    assert "'1-60000' are more than 1,000 seeds" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0", "-5"])
def test_number_of_steps_is_checked_in_a_folder_of_seeds(steps, tmp_path, capsys):
    create_runs(tmp_path, config(), [1])
    assert main(["resume", str(tmp_path), "--total-steps", steps]) == 2
    assert f"total_steps must be at least 1, got {steps}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--model", "nowhere", "nowhere holds no run"), ("--wrapper", "gymnasium.wrappers:ClipAction", "cannot wrap")],
)
def test_wrong_settings_are_refused_before_a_run_is_replaced(option, value, message, tmp_path, capsys):
    create_runs(tmp_path, config(), [1])
    command = ["train", "ppo", "Acrobot-v1", "--seed", "1", "2", "--out", str(tmp_path), "--overwrite", option, value]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert list(seed_runs(tmp_path)) == [1]
    assert Run(tmp_path / "seed-1").read_config().env == "CartPole-v1"


@pytest.mark.slow
def test_command_trains_reports_and_extends(tmp_path, capsys):
    out = str(tmp_path / "runs")
    assert main(["train", "ppo", "CartPole-v1", "--seed", "1-2", "--out", out, *OPTIONS]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"training seeds 1, 2 in {out}"
    table = printed[next(i for i, line in enumerate(printed) if line.startswith("seed ") and "stochastic" in line) :]
    finals = {seed: run.evaluations()[-2]["mean_return"] for seed, run in seed_runs(out).items()}
    assert [float(line.split()[1]) for line in table[1:3]] == pytest.approx(list(finals.values()))
    assert table[3].split()[:2] == ["IQM", f"{sum(finals.values()) / 2:.2f}"]

    assert main(["resume", out, "--total-steps", "800", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["stochastic"].keys() == {"iqm", "interval"}
    assert all(seed["stochastic"]["step"] >= 800 for seed in answer["seeds"].values())
    assert main(["resume", out, "--checkpoint", "100"]) == 2
    assert main(["resume", out + "/seed-1", "--jobs", "2"]) == 2
    assert "--jobs is for the runs of several seeds" in capsys.readouterr().err
    assert main(["resume", out, "--jobs", "0"]) == 2
    assert "jobs must be at least 1, got 0" in capsys.readouterr().err


def test_folder_of_runs_with_other_names_is_none_of_seeds(tmp_path, capsys):
    create_runs(tmp_path, config(), [1])
    (tmp_path / "seed-1").rename(tmp_path / "seed-1-old")
    assert main(["resume", str(tmp_path)]) == 2
    assert "Traceback" not in (error := capsys.readouterr().err)
    assert str(tmp_path) in error


@pytest.mark.slow
def test_failed_seed_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "unlucky.py").write_text(
        "import contextlib, os\nimport gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n\n"
        "class Unlucky(CartPoleEnv):\n    def step(self, action):\n"
        "        with contextlib.suppress(FileNotFoundError):\n            os.rename('bad', 'used')\n"
        "            raise RuntimeError('no luck')\n        return super().step(action)\n\n\n"
        "gymnasium.register('Unlucky-v0', Unlucky, max_episode_steps=50)\n"
    )
    (tmp_path / "bad").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(tmp_path)
    command = ["train", "ppo", "unlucky:Unlucky-v0", "--seed", "1", "2", "--out", "runs", *OPTIONS, "--quiet"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "no luck" in error
    assert "rlzoo: 1 of 2 seeds failed; again: rlzoo resume runs" in error
    (failed,) = (seed for seed in (1, 2) if f"rlzoo: seed {seed} failed: " in error)
    assert Run(f"runs/seed-{3 - failed}").finished
    assert main(command) == 0
    assert Run(f"runs/seed-{failed}").finished


def start(folder, total_steps):
    code = "import sys; from rlzoo.cli import main; sys.exit(main(sys.argv[1:]))"
    options = [*OPTIONS, "--total-steps", str(total_steps), "--eval-interval", "100000", "--jobs", "2"]
    command = ["train", "ppo", "CartPole-v1", "--seed", "1", "2", "--out", str(folder), *options]
    return subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for_steps(folder):
    """Until both runs are under way."""
    deadline = time.monotonic() + 120
    while not all(Run(folder / f"seed-{seed}").last_metrics() for seed in (1, 2)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopped_and_continued_equals_never_stopped(tmp_path, number, code):
    steps = 60_000
    process = start(tmp_path / "runs", steps)
    wait_for_steps(tmp_path / "runs")
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code
    if number != signal.SIGKILL:
        assert said.decode() == f"rlzoo: stopped; continue with: rlzoo resume {tmp_path}/runs\n"
    runs = seed_runs(tmp_path / "runs")
    deadline = time.monotonic() + 60
    for run in runs.values():  # after SIGKILL the processes stop by themselves
        while not run.steps():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1 if number == signal.SIGKILL else 0)
        assert run.last_metrics()["step"] < steps
    short = {seed: run.steps()[-1] + 1_000 for seed, run in runs.items()}
    for seed, run in runs.items():
        assert train_seeds({seed: run}, total_steps=short[seed]) == {}
        settings = {name.replace("-", "_"): x for name, x in zip(OPTIONS[::2], OPTIONS[1::2], strict=False)}
        settings = {name.lstrip("_"): int(x) for name, x in settings.items()} | {"hidden": (8,)}
        settings |= {"total_steps": short[seed], "eval_interval": 100_000}
        alone = train("ppo", "CartPole-v1", seed=seed, preset=False, out=tmp_path / f"alone-{seed}", **settings)
        assert short_runs.weights(run) == short_runs.weights(alone)
