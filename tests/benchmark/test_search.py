"""The search for settings: starts from the preset, prunes, goes on from its file, and writes a preset."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from rlzoo.benchmark.search import _best_and_start, _cut_half_line, _enqueue, _preset, _Problem, score_of, search
from rlzoo.benchmark.spaces import SCHEDULED, SPACES, Between, as_parameters, as_settings, space_for
from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError, RunError, TrainingError
from rlzoo.core.system.fields import check_fields
from rlzoo.runs.configuration.config import assemble, make_config, present_names
from rlzoo.runs.configuration.presets import environments, find_preset
from rlzoo.runs.registry import algorithm_class

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
ROOT = Path(__file__).parents[2]
PRESETS = ROOT / "rlzoo" / "runs" / "configuration" / "presets"
QUICK = [
    *("--total-steps", "1024", "--seeds", "0-1", "--validation-seeds", "10", "--jobs", "1"),
    *("--set", "hidden=[4]", "num_envs=8", "num_steps=32", "minibatch_size=64"),
]


def study(folder, name):
    file = optuna.storages.journal.JournalFileBackend(str(folder))
    return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(file))


@pytest.mark.slow
def test_command_searches_goes_on_and_writes_a_preset(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["search", "ppo-clip", "CartPole-v1", "--out", "found", *QUICK]
    assert main([*command, "--trials", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["trial"], list(answer["validation"])) == (0, ["0"])
    (first,) = study("found/study.log", "ppo-clip/CartPole-v1").trials
    preset = find_preset("ppo-clip", "CartPole-v1")
    given = {"total_steps": 1024, "hidden": [4], "num_envs": 8, "num_steps": 32, "minibatch_size": 64}
    tried = {name: x for name, x in first.user_attrs["settings"].items() if name != "noise_correlation"}
    assert tried == preset | given
    assert not {"num_envs", "num_steps", "minibatch_size"} & first.params.keys()
    assert len(first.intermediate_values) == 2 * 20

    assert main([*command, "--trials", "2", "--try", "epochs=4", "cg=1"]) == 2
    assert "no setting 'cg'" in capsys.readouterr().err
    assert main([*command, "--trials", "2"]) == 0
    printed = capsys.readouterr().out
    assert "rlzoo train ppo-clip CartPole-v1 --preset found/preset.toml" in printed
    text = Path("found/preset.toml").read_text()
    assert text.startswith("# rlzoo search ppo-clip CartPole-v1 --out found --total-steps 1024")
    assert "# study found/study.log, seeds [0, 1], validation seeds [10]\n# best of 2 trials: trial " in text
    assert "# on other seeds, trial 0: " in text
    table = tomllib.loads(text)
    assert table["algorithm"] == "ppo-clip"
    assert make_config("ppo-clip", "CartPole-v1", **table["CartPole-v1"]).total_steps == 1024

    train = ["train", "ppo", "CartPole-v1", "--preset", "found/preset.toml", "--quiet", "--out"]
    assert main([*train, "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["hidden"] == [4]
    capsys.readouterr()
    assert main(["train", "trpo", "CartPole-v1", "--preset", "found/preset.toml"]) == 2
    assert "preset found/preset.toml is for ppo-clip, not for trpo" in capsys.readouterr().err
    assert main(["train", "ppo", "Acrobot-v1", "--preset", "found/preset.toml"]) == 2
    assert "has no table [Acrobot-v1]; it has CartPole-v1" in capsys.readouterr().err
    assert main([*command, "--seeds", "3", "--trials", "3"]) == 2
    assert "found holds a search with other seeds" in capsys.readouterr().err


@pytest.mark.slow
def test_variant_is_tried_with_exactly_its_settings(tmp_path):
    fixed = {"total_steps": 256, "num_envs": 2, "num_steps": 128, "minibatch_size": 64, "hidden": [4]}
    variant = {"hidden": (5,), "num_steps": 32, "epochs": 3, "learning_rate": "linear:0.00123456:0.001"}
    other = {"estimator": "monte-carlo"}  # which has no λ
    for more, count in ((None, 1), (variant, 2), (variant, 2), ({"gae_lambda": 0.5}, 3), (other, 4)):
        once = {"trials": 1, "seeds": [0], "validation_seeds": [], "fixed": fixed}
        search("ppo-clip", "CartPole-v1", tmp_path, **once, variant=more)
        first, *tried = (x.user_attrs["settings"] for x in study(tmp_path / "study.log", "ppo-clip/CartPole-v1").trials)
        assert len(tried) == count - 1
    without = {name: x for name, x in first.items() if name != "gae_lambda"}
    assert tried == [first | variant | {"hidden": [5]}, first | {"gae_lambda": 0.5}, without | other]


def test_preset_is_toml_after_a_command_of_two_lines():
    problem = _Problem(Path(), "ppo-clip", "CartPole-v1", {}, {}, ())
    table = tomllib.loads(_preset(problem, {"epochs": 4}, ["--set 'wrappers=a\nb'"]).decode())
    assert table == {"algorithm": "ppo-clip", "CartPole-v1": {"epochs": 4}}


def test_missing_package_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["search", "ppo", "CartPole-v1", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == "rlzoo: rlzoo search needs Optuna: pip install 'rlzoo[search]'\n"


@pytest.mark.slow
def test_killed_search_loses_only_the_trial_that_was_running(tmp_path):
    code = "import sys; from rlzoo.cli import main; sys.exit(main(sys.argv[1:]))"
    command = ["search", "ppo-clip", "CartPole-v1", *QUICK, "--seeds", "0", "--trials", "3", "--out"]

    def trials(folder):
        return [x for x in study(folder / "study.log", "ppo-clip/CartPole-v1").trials if x.state.name != "FAIL"]

    program = [sys.executable, "-c", code, *command, tmp_path / "killed"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("trial 0: ")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(3)  # its worker ends
    for folder in ("killed", "whole"):
        assert main([*command, str(tmp_path / folder)]) == 0
    killed, whole = (trials(tmp_path / folder) for folder in ("killed", "whole"))
    assert len(killed) == len(whole) == 3
    assert killed[0].values == whole[0].values
    assert os.path.exists(tmp_path / "killed" / "preset.toml")


@pytest.mark.slow
def test_a_trial_that_fails_ends_the_search_with_its_error(tmp_path):
    fixed = {"wrappers": ["gymnasium.wrappers:ClipAction"], "num_envs": 2, "num_steps": 128, "total_steps": 512}
    with pytest.raises(TrainingError, match=r"^failed: trial 0: EnvError: .*ClipAction cannot wrap the environment"):
        search("ppo-clip", "CartPole-v1", tmp_path, trials=1, seeds=[0], fixed=fixed)


@pytest.mark.slow
def test_the_start_is_tried_again_after_it_failed(tmp_path):
    """The user mends a module between the two commands."""
    module, out = tmp_path / "mine.py", tmp_path / "search"
    fixed = {"total_steps": 256, "num_envs": 2, "num_steps": 128, "minibatch_size": 64, "hidden": [4]}
    fixed["wrappers"] = [f"{module}:Mine"]
    options = {"trials": 2, "seeds": [0], "validation_seeds": [], "fixed": fixed}
    text = "import gymnasium\nclass Mine(gymnasium.Wrapper):\n    def step(self, action):\n        "
    module.write_text(f"{text}raise OSError('no simulator')\n")
    with pytest.raises(TrainingError, match="failed: trial 0"):
        search("ppo-clip", "CartPole-v1", out, **options)
    module.write_text(f"{text}return super().step(action)\n")
    result = search("ppo-clip", "CartPole-v1", out, **options)
    assert (result.start, result.trials) == (1, 2)


@pytest.mark.slow
def test_folder_of_another_pair_is_refused(tmp_path):
    fixed = {"total_steps": 256, "num_envs": 2, "num_steps": 128, "minibatch_size": 64, "hidden": [4]}
    once = {"trials": 1, "seeds": [0], "validation_seeds": [], "fixed": fixed}
    search("ppo-clip", "CartPole-v1", tmp_path, **once)
    preset = (tmp_path / "preset.toml").read_bytes()
    with pytest.raises(RunError, match="holds a search of ppo-clip/CartPole-v1: give another --out"):
        search("ppo-clip", "Acrobot-v1", tmp_path, trials=1, seeds=[0], validation_seeds=[], fixed=fixed)
    with pytest.raises(RunError, match="holds a search with other fixed"):
        search(
            "ppo-clip", "CartPole-v1", tmp_path, trials=1, seeds=[0], validation_seeds=[], fixed=fixed | {"gamma": 0.99}
        )
    with pytest.raises(RunError, match=r"holds a search with other total_steps \(256, not 512\): give another --out$"):
        search("ppo-clip", "CartPole-v1", tmp_path, **once | {"fixed": fixed | {"total_steps": 512}})
    assert (tmp_path / "preset.toml").read_bytes() == preset


class LowTrial:
    """A trial that lies below the median of the others."""

    number = 0

    def __init__(self, **user_attrs):
        self.user_attrs = user_attrs
        self.set_user_attr = user_attrs.__setitem__

    def report(self, value, step):
        pass

    def should_prune(self):
        return True


def test_start_is_never_pruned_because_the_best_trial_is_compared_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("rlzoo.benchmark.search.curve", lambda *_: iter([2.0] * 20))
    problem = _Problem(tmp_path / "study.log", "ppo-clip", "CartPole-v1", {}, {}, (0,))
    assert problem.score(LowTrial()) is None
    assert problem.score(LowTrial(start=True)) == 2


def test_returns_that_are_nan_prune_a_trial(tmp_path, monkeypatch):
    monkeypatch.setattr("rlzoo.benchmark.search.curve", lambda *_: iter([float("nan")] * 20))
    problem = _Problem(tmp_path / "study.log", "ppo-clip", "CartPole-v1", {}, {}, (0,))
    trial = LowTrial(start=True)
    assert problem.score(trial) is None
    assert trial.user_attrs["pruned"] == "its returns are NaN"


@pytest.mark.parametrize(("state", "fault"), [("RUNNING", "killed.*tries again"), ("PRUNED", "change them by --set")])
def test_why_the_start_has_no_score(tmp_path, state, fault):
    study = _Problem(tmp_path / "study.log", "ppo-clip", "CartPole-v1", {}, {}, (0,)).study()
    _enqueue(study, {}, {}, {})
    trial = study.ask()
    if state == "PRUNED":
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    with pytest.raises(TrainingError, match=fault):
        _best_and_start(study)


def test_score_is_of_the_end_and_of_the_whole():
    assert score_of([0.0] * 15 + [10.0] * 5) == pytest.approx(0.7 * 10 + 0.3 * 2.5)


def test_range_moves_to_a_value_that_it_does_not_hold_and_other_choices_stay():
    values = {"learning_rate": 1e-5, "gamma": 1.0, "epochs": 4, "beta": 0.05}
    space = space_for("ppo-clip", values, fixed={"epochs": 4})
    assert space["learning_rate"] == Between(pytest.approx(2e-6), pytest.approx(5e-5))
    assert space.keys() == {"learning_rate", "anneal_lr", "beta"}


def test_spaces_hold_settings_of_some_algorithm_and_no_other_names():
    pairs = [(algorithm, env) for algorithm in SPACES for env in ("CartPole-v1", "RandomWalks")]
    known = set().union(SCHEDULED, *(assemble(*pair, {}).table for pair in pairs))
    assert set().union(*SPACES.values()) - known == set()


@pytest.mark.parametrize("algorithm", SPACES)
def test_spaces_lie_in_the_ranges_of_the_settings(algorithm):
    for env in ("CartPole-v1", "RandomWalks"):
        for name, space in SPACES[algorithm].items():
            for x in space if isinstance(space, tuple) else (space.low, space.high):
                base = {"num_envs": 4, "num_steps": 4} if env == "CartPole-v1" else {}
                table = assemble(algorithm, env, base).table
                settings = as_settings(algorithm, {name: x}) if not name.startswith("anneal") else {}
                check_fields(assemble(algorithm, env, {k: v for k, v in settings.items() if k in table}))


@pytest.mark.parametrize("algorithm", SPACES)
def test_presets_lie_in_the_space_that_is_searched(algorithm):
    for env, algorithms in environments().items():
        if algorithm in algorithms and env.endswith(("v0", "v1")):
            for name, space in SPACES[algorithm].items():
                x = as_parameters(find_preset(algorithm, env)).get(name)
                inside = x in space if isinstance(space, tuple) else space.low <= (x or space.low) <= space.high
                assert x is None or inside, (env, name, x)


@pytest.mark.parametrize("path", sorted(PRESETS.glob("[nprt]*.toml")), ids=lambda path: path.stem)
def test_studies_that_presets_name_hold_their_trials(path):
    for line in path.read_text().splitlines():
        if "# study" in line:
            env = line[1 : line.index("]")]
            name, trial = line.split("# study ")[1].split(", trial ")
            assert name == f"{path.stem}-{env}"
            file = ROOT / "benchmarks" / "studies" / "searches" / f"{name}.log"
            params = study(file, f"{path.stem}/{env}").trials[int(trial)].params
            preset = as_parameters(find_preset(path.stem, env))
            for setting, x in present_names(algorithm_class(path.stem), params, say=False).items():
                given = preset.get(setting, 0.0 if setting == "noise_correlation" else False)
                assert given == (pytest.approx(x, rel=6e-3) if isinstance(x, float) else x), setting


def test_an_entry_that_cannot_be_written_leaves_no_part_and_names_the_file(tmp_path, monkeypatch):
    file = tmp_path / "study.log"
    problem = _Problem(file, "ppo-clip", "CartPole-v1", {}, {}, (0,))
    problem.study()
    before = file.read_bytes()

    def half(self, logs):
        with file.open("ab") as journal:
            journal.write(b'{"half')
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(optuna.storages.journal.JournalFileBackend, "append_logs", half)
        with pytest.raises(OSError, match=f"No space left on device: .{file}"):
            problem.study().set_user_attr("name", 1)
    assert file.read_bytes() == before
    problem.study().set_user_attr("name", 1)


@pytest.mark.parametrize("left", [b'{"op_code": 4, "hal', b"\0" * 100])
def test_a_line_that_a_power_failure_left_half_written_is_cut_off(tmp_path, left):
    file = tmp_path / "study.log"
    problem = _Problem(file, "ppo-clip", "CartPole-v1", {}, {}, (0,))
    problem.study().set_user_attr("name", 1)
    whole = file.read_bytes()
    file.write_bytes(whole + left)
    _cut_half_line(file)
    assert file.read_bytes() == whole
    _cut_half_line(file)
    assert problem.study().user_attrs["name"] == 1


@pytest.mark.parametrize("kind", ["fixed", "variant"])
def test_seeds_and_length_of_the_trials_are_not_searched(tmp_path, kind):
    with pytest.raises(ConfigError, match=r"^seed cannot be set or tried: a search has seeds$"):
        search("ppo-clip", "CartPole-v1", tmp_path, **{kind: {"seed": 4}})
    with pytest.raises(ConfigError, match=r"^total_steps cannot be tried: all trials have the same$"):
        search("ppo-clip", "CartPole-v1", tmp_path, variant={"total_steps": 512})
    assert not list(tmp_path.iterdir())
