"""Suites: what a file says, what it becomes, and which line a fault is on."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from rlzoo.benchmark import known_peers, known_suites
from rlzoo.benchmark.job import load_peer
from rlzoo.benchmark.results import Results, Writer
from rlzoo.benchmark.suite import load_suite
from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.presets import find_preset

SMALL = """\
algorithms: [trpo]
environments: [CartPole-v1]
seeds: [3, 1]
"""


@pytest.fixture
def suite_of(tmp_path):
    def load(text, name="mine"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(textwrap.dedent(text))
        return load_suite(path)

    return load


@pytest.fixture
def fault_of(suite_of):
    """The line and the message of the error that a file gives."""

    def fault(text):
        with pytest.raises(ConfigError) as caught:
            suite_of(text)
        place, message = str(caught.value).split(": ", 1)
        assert "\n" not in message
        return int(place.rsplit("line ", 1)[1]), message

    return fault


def test_defaults(suite_of):
    suite = suite_of(SMALL)
    assert (suite.name, suite.title, suite.description) == ("mine", "mine", "")
    assert suite.seeds == (3, 1)
    assert (suite.eval_episodes, suite.final_episodes) == (20, 100)
    environment = suite.environments["CartPole-v1"]
    assert (environment.total_steps, environment.eval_interval, environment.threshold) == (100_000, 5_000, 475)
    (first, second) = suite.jobs
    assert first.key == ("trpo", "CartPole-v1", 3)
    assert second.key == ("trpo", "CartPole-v1", 1)
    preset = find_preset("trpo", "CartPole-v1")
    expected = make_config("trpo", "CartPole-v1", **{**preset, "total_steps": 100_000}).to_dict()
    del expected["env"], expected["seed"]
    assert first.settings == json.loads(json.dumps(expected))


def test_the_metric_that_scores_are_drawn_against(suite_of, tmp_path):
    assert suite_of(SMALL).against is None
    suite = suite_of(SMALL + "against: kl_reference\n")
    assert suite.against == "kl_reference"
    Writer(tmp_path, suite, "a command", {}).rewrite()
    assert Results.read(tmp_path).against == "kl_reference"


def test_results_without_that_metric_are_read(suite_of, tmp_path):
    """Those of earlier versions."""
    Writer(tmp_path, suite_of(SMALL), "a command", {}).rewrite()
    record = json.loads((tmp_path / "suite.json").read_text())
    del record["suite"]["against"]
    (tmp_path / "suite.json").write_text(json.dumps(record))
    assert Results.read(tmp_path).against is None


def test_jobs_come_seed_by_seed(suite_of):
    suite = suite_of("""\
        algorithms: [npg, trpo]
        environments: [CartPole-v1, Pendulum-v1]
        seeds: 10-11
        """)
    assert [job.key for job in suite.jobs] == [
        (label, env, seed) for seed in (10, 11) for env in ("CartPole-v1", "Pendulum-v1") for label in ("npg", "trpo")
    ]


def test_the_nearer_override_counts(suite_of):
    suite = suite_of("""\
        overrides: {gamma: 0.5, gae_lambda: 0.5, max_kl: 0.5}
        algorithms:
          trpo: {overrides: {max_kl: 7e-1}}
        environments:
          CartPole-v1: {overrides: {gae_lambda: 0.6, max_kl: 0.6}, threshold: 100, total_steps: 4_000}
        seeds: [0]
        """)
    settings = suite.jobs[0].settings
    assert (settings["gamma"], settings["gae_lambda"], settings["max_kl"]) == (0.5, 0.6, 0.7)
    assert settings["total_steps"] == 4000
    assert suite.environments["CartPole-v1"].eval_interval == 200
    assert suite.environments["CartPole-v1"].threshold == 100


def test_settings_of_an_algorithm_in_one_environment(suite_of):
    suite = suite_of("""\
        algorithms:
          trpo: {overrides: {max_kl: 0.7, gamma: 0.7}, environments: {Acrobot-v1: {max_kl: 0.8}}}
        environments:
          CartPole-v1:
          Acrobot-v1: {overrides: {max_kl: 0.6, gae_lambda: 0.6}}
        seeds: [0]
        """)
    cartpole, acrobot = (job.settings for job in suite.jobs)
    assert (cartpole["max_kl"], cartpole["gamma"]) == (0.7, 0.7)
    assert (acrobot["max_kl"], acrobot["gamma"], acrobot["gae_lambda"]) == (0.8, 0.7, 0.6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("{Acrobot-v1: {max_kl: 2}}", "line 3: no environment 'Acrobot-v1'"),
        ("{CartPole-v1: {max_kl: -2}}", "line 3: trpo on CartPole-v1: max_kl must be above 0"),
        ("{CartPole-v1: 3}", "line 3: CartPole-v1 must be a mapping, got 3"),
        ("3", "line 3: environments must be"),
    ],
)
def test_wrong_settings_in_one_environment(suite_of, fields, message):
    with pytest.raises(ConfigError, match=message):
        suite_of(f"algorithms:\n  trpo:\n    environments: {fields}\nenvironments: [CartPole-v1]\nseeds: [0]\n")


def test_an_algorithm_under_a_label_of_its_own(suite_of):
    suite = suite_of("""\
        algorithms:
          with: {algorithm: trpo}
          without: {algorithm: npg, preset: trpo}
          plain: {algorithm: npg, preset: false}
        environments: [Acrobot-v1]
        seeds: [0]
        """)
    searching, full_step, plain = (job.settings for job in suite.jobs)
    assert (searching["algorithm"], full_step["algorithm"]) == ("trpo", "npg")
    assert full_step == {name: x for name, x in searching.items() if name in full_step} | {
        "algorithm": "npg",
        "step_kl": searching["max_kl"],
    }
    assert full_step["step_kl"] != make_config("npg", "Acrobot-v1").algorithm.step_kl
    plain_settings = make_config("npg", "Acrobot-v1").to_dict()
    assert plain["vf_learning_rate"] == plain_settings["vf_learning_rate"]


def test_a_peer(suite_of, tmp_path):
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "other.py").write_text(
        "class Other:\n    def settings(self, env):\n        return {'lr': 0.1, 'env': env}\n\nother = Other()\n"
    )
    suite = suite_of("""\
        algorithms:
          trpo:
          theirs: {peer: peers/other.py:other, counterpart: trpo, overrides: {lr: 2}}
        environments: {CartPole-v1: {total_steps: 500}}
        seeds: [0]
        """)
    _, job = suite.jobs
    assert job.settings == {
        "peer": "peers/other.py:other", "lr": 2, "env": "CartPole-v1", "total_steps": 500,
    }  # fmt: skip
    assert job.peer == f"{tmp_path / 'peers/other.py'}:other"
    assert suite.algorithms["theirs"].counterpart == "trpo"


def test_peers_have_names(suite_of):
    pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 comes with the extra peers")
    suite = suite_of("""\
        algorithms:
          theirs: {peer: sb3:PPO}
        environments: [CartPole-v1]
        seeds: [0]
        """)
    (job,) = suite.jobs
    assert job.settings["peer"] == "sb3:PPO"
    assert Path(job.peer.rpartition(":")[0]).samefile(known_peers()["sb3"])
    assert load_peer(job.peer).settings("CartPole-v1")["n_steps"] == job.settings["n_steps"]


def test_a_setting_that_a_peer_has_not(fault_of, tmp_path):
    (tmp_path / "peer.py").write_text(
        "class Other:\n    def settings(self, env):\n        return {'clip': 1}\n\nother = Other()\n"
    )
    line, message = fault_of("""\
        algorithms:
          theirs:
            peer: peer.py:other
            overrides: {clap: 2}
        overrides: {gamma: 1}
        environments: [CartPole-v1]
        seeds: [0]
        """)
    assert (line, message) == (4, "theirs on CartPole-v1: no setting 'clap'; did you mean 'clip'?")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("algorithms: [trpo\n", 2, "expected ',' or ']'"),
        ("[]", 1, "a suite is a mapping"),
        (SMALL + "seed: [1]\n", 4, "no field 'seed'; did you mean 'seeds'?"),
        (SMALL + "seeds: [1]\n", 4, "seeds is given twice"),
        ("algorithms: [trpo, trpo]\nenvironments: [CartPole-v1]\nseeds: [1]", 1, "algorithms: trpo is given twice"),
        ("algorithms: [trpo]\nenvironments: [CartPole-v1]\n", 1, "seeds: at least one is required"),
        ("algorithms: []\nenvironments: [CartPole-v1]\nseeds: [1]", 1, "algorithms: at least one is required"),
        ("algorithms: trpo\nenvironments: [CartPole-v1]\nseeds: [1]", 1, "algorithms must be a list of names"),
        ("seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  - trpo\n  - trop\n", 5, "no algorithm 'trop'; did"),
        (
            "seeds: [1]\nalgorithms: [trpo]\nenvironments:\n  CartPole-v1:\n  CartPol-v1:\n",
            5,
            "no environment 'Cart",
        ),
        ("seeds: [1]\nalgorithms:\n  trpo: {overide: {}}\nenvironments: [CartPole-v1]\n", 3, "no field 'overide'"),
        ("seeds: [1]\nalgorithms:\n  trpo: 3\nenvironments: [CartPole-v1]\n", 3, "trpo must be a mapping"),
        (SMALL + "overrides:\n  gamma: 0.9\n  gama: 0.9\n", 6, "trpo on CartPole-v1: no setting 'gama'; did you mean"),
        (
            SMALL + "overrides:\n  gamma: 0.9\n  max_kl: -1\n",
            6,
            "trpo on CartPole-v1: max_kl must be above 0, or a schedule such as linear:1e-3:0, got -1",
        ),
        (SMALL + "overrides: 3\n", 4, "overrides must be a mapping"),
        *(
            (SMALL + f"overrides:\n  gamma: 0.9\n  {name}: 3\n", 6, f"{name} cannot be overridden: ")
            for name in ("algorithm", "env", "seed", "total_steps", "eval_interval", "stop_return")
        ),
        (
            SMALL + "overrides: {max_kl: 'no:where'}\n",
            4,
            "max_kl must be a number, linear:START:END or module:function",
        ),
        (SMALL + "overrides: {device: nowhere}\n", 4, "device must be cpu, cuda, cuda:N or the like, got 'nowhere'"),
        (
            "algorithms:\n  npg:\n  trpo:\n    overrides:\n      kl_coef: 1\nseeds: 1-2\nenvironments: [CartPole-v1]",
            5,
            "trpo on CartPole-v1: trpo has no kl_coef; ppo-penalty has",
        ),
        (
            "seeds: [1]\nalgorithms: [trpo]\nenvironments:\n  CartPole-v1:\n    overrides: {num_envs: 0}\n",
            5,
            "trpo on CartPole-v1: num_envs must be at least 1, got 0",
        ),
        (SMALL + "total_steps: many\n", 4, "total_steps must be an integer, got 'many'"),
        ("seeds: [1, 1]\nalgorithms: [trpo]\nenvironments: [CartPole-v1]\n", 1, "seeds must be a list of different"),
        ("seeds: 5-3\nalgorithms: [trpo]\nenvironments: [CartPole-v1]\n", 1, "seeds: 5-3 is an empty range"),
        ("seeds: [-1]\nalgorithms: [trpo]\nenvironments: [CartPole-v1]\n", 1, "seeds"),
        ("seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  x: {peer: no.py:x}\n", 4, "x on CartPole-v1: peer"),
        (
            "seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  trpo: {counterpart: x}\n",
            4,
            "counterpart: only a peer",
        ),
        ("seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  trpo: {preset: tpro}\n", 4, "no algorithm 'tpro'"),
        ("algorithms: &a\n  x: *a\nenvironments: [CartPole-v1]\nseeds: [1]\n", 2, "aliases are not supported"),
        ("!!python/object/apply:os.getpid []\n", 1, "could not determine a constructor"),
        ("algorithms: [trpo]\nenvironments: [CartPole-v1]\nseeds: [2020-01-01]\n", 3, "seeds"),
        ("algorithms: [trpo]\nenvironments: [CartPole-v1]\nseeds: 0-99999999999\n", 3, "seeds: 0-99999999999 are more"),
        ("algorithms: [trpo]\nseeds: [1]\nenvironments:\n  3: {}\n", 4, "3 is not a name"),
        (SMALL + "overrides:\n  gamma: 0.9\n  true: 1\n", 6, "true is not a name"),
        (SMALL + "overrides:\n  gamma: {}\n", 5, "gamma must be a number"),
        (SMALL + f"total_steps: 1{'0' * 400}\n", 4, "total_steps must be below 3.40282e+38"),
        (SMALL + f"overrides:\n  max_kl: 1{'0' * 400}\n", 5, "trpo on CartPole-v1: max_kl must be below 3.40282e+38"),
        ("seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  x: {peer: 3}\n", 4, "peer must be a string"),
        (
            "seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  x: {peer: sb4:PPO}\n",
            4,
            "x on CartPole-v1: peer 'sb4:PPO' is neither file.py:name nor one of rejax:NAME, sb3:NAME, tianshou:NAME",
        ),
        (
            f"seeds: [1]\nenvironments: [CartPole-v1]\nalgorithms:\n  - trpo\n  - {'x' * 5000}\n",
            5,
            "no algorithm 'xxx",
        ),
    ],
)
def test_a_fault_is_named_with_its_line(fault_of, text, line, message):
    found, said = fault_of(text)
    assert message in said
    assert found == line


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load_suite(tmp_path / "none.yaml")


def test_a_name_that_is_not_there():
    with pytest.raises(ConfigError, match="no suite 'clasic'; did you mean 'classic'"):
        load_suite("clasic")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x9d", b"[" * 5000, b"title: x\nseeds: [!!int x]\n"])
def test_a_file_that_is_no_yaml(data, tmp_path):
    (tmp_path / "x.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match="invalid YAML"):
        load_suite(tmp_path / "x.yaml")


def test_a_package_that_an_environment_lacks_is_one_line_before_any_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["benchmark", "ant", "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "ant.yaml, line 19: environment 'Ant-v5' cannot be made: a package is missing: pip install 'rlzoo[mujoco]'"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in known_suites() if "peer" not in name])
def test_the_suites_that_come_along(name):
    suite = load_suite(name)
    assert len(suite.jobs) == len(suite.algorithms) * len(suite.environments) * len(suite.seeds)
    assert suite.title
    assert suite.description
