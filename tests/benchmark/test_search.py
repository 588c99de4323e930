"""The search for presets: starts from the preset, prunes, is kept in a file and goes on from there."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

from rlzoo.runs.config import make_config
from rlzoo.runs.presets import environments, find_preset

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def search(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("search_presets", ROOT / "benchmarks" / "search_presets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STUDIES", tmp_path)
    return module


def trials(search):
    return search.open_study("trpo", "Acrobot-v1").trials


def test_it_starts_from_the_preset_and_goes_on(search, monkeypatch, capsys):
    tried = []

    def score(algorithm, env, settings, seed):
        tried.append((settings, seed))
        return -abs(settings["max_kl"] - 0.03)

    monkeypatch.setattr(search, "score", score)
    search.enqueue(search.open_study("trpo", "Acrobot-v1"), "trpo", "Acrobot-v1", "")
    search.enqueue(search.open_study("trpo", "Acrobot-v1"), "trpo", "Acrobot-v1", "max_kl=0.03 cg_iters=7")
    search.work("trpo", "Acrobot-v1", 2)
    preset = find_preset("trpo", "Acrobot-v1") | {"total_steps": 100_000}
    assert tried[:3] == [(preset, seed) for seed in (0, 1, 2)]
    assert tried[3][0] == preset | {"max_kl": 0.03, "cg_iters": 7}
    search.work("trpo", "Acrobot-v1", 3)
    assert len(trials(search)) == 5
    search.show(search.open_study("trpo", "Acrobot-v1"), "Acrobot-v1")
    page = capsys.readouterr().out
    found = tomllib.loads(page[page.index("[Acrobot-v1]") :])["Acrobot-v1"]
    assert found["cg_iters"] == 7
    make_config("trpo", "Acrobot-v1", **found)


def test_what_lies_behind_is_pruned(search, monkeypatch):
    monkeypatch.setattr(search, "score", lambda algorithm, env, settings, seed: -settings["max_kl"])
    for max_kl in (0.01, 0.01, 0.01, 0.05):
        search.enqueue(search.open_study("trpo", "Acrobot-v1"), "trpo", "Acrobot-v1", f"max_kl={max_kl}")
    search.work("trpo", "Acrobot-v1", 4)
    assert [trial.state.name for trial in trials(search)] == [*["COMPLETE"] * 3, "PRUNED"]
    assert len(trials(search)[3].intermediate_values) == 2  # nothing is pruned after its first seed


@pytest.mark.parametrize("algorithm", ["reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"])
def test_presets_lie_in_the_space_that_is_searched(search, algorithm):
    for env, algorithms in environments().items():
        if algorithm in algorithms and env.endswith(("v0", "v1")):
            for name, choices in search.SPACES[algorithm].items():
                x = find_preset(algorithm, env).get(name)
                inside = (
                    x in choices if isinstance(choices, tuple) else choices.low <= (x or choices.low) <= choices.high
                )
                assert x is None or inside, (env, name, x)


@pytest.mark.parametrize("path", sorted((ROOT / "rlzoo" / "presets").glob("[nprt]*.toml")), ids=lambda path: path.stem)
def test_studies_that_presets_name_hold_their_trials(path):
    for line in path.read_text().splitlines():
        if "# study" in line:
            env = line[1 : line.index("]")]
            name, trial = line.split("# study ")[1].split(", trial ")
            assert name == f"{path.stem}-{env}"
            file = optuna.storages.journal.JournalFileBackend(str(ROOT / "benchmarks" / "studies" / f"{name}.log"))
            study = optuna.load_study(study_name=f"{path.stem}/{env}", storage=optuna.storages.JournalStorage(file))
            params = study.trials[int(trial)].params
            preset = find_preset(path.stem, env)
            for setting, x in params.items():
                given = preset.get(setting, 0.0 if setting == "noise_correlation" else False)
                assert given == (pytest.approx(x, rel=6e-3) if isinstance(x, float) else x), setting
