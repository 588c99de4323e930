"""The command line, called in this process where it can be."""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import short_runs

from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.core.system.threads import from_environment
from rlzoo.runs.run import Run

SMALL = [
    *("--total-steps", "600", "--num-envs", "4", "--num-steps", "25"),
    *("--eval-episodes", "3", "--hidden", "8", "--no-preset"),
]
SMALL_PPO = [*SMALL, "--epochs", "1", "--minibatch-size", "100"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return short_runs.quick_run(tmp_path_factory.mktemp("cli") / "run")


def lines(capsys):
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


# What works


def test_train_eval_resume(tmp_path, capsys):
    path = str(tmp_path / "run")
    assert main(["train", "ppo", "CartPole-v1", "--out", path, "--seed", "3", "--gamma", "0.9", *SMALL_PPO]) == 0
    out, err = lines(capsys)
    assert err == []
    assert out[0] == f"training in {path}"
    assert "episodes; deterministic" in out[-1]
    config = Run(path).read_config()
    assert (config.seed, config.algorithm.estimator.gamma, config.task.network.hidden) == (3, 0.9, (8,))

    assert main(["eval", path, "--episodes", "7", "--seed", "1", "--json"]) == 0
    (answer,), err = lines(capsys)
    assert err == []
    answer = json.loads(answer)
    assert answer.keys() >= {"mean_return", "std_return", "episodes", "deterministic", "seed", "step", "run"}
    assert (answer["episodes"], answer["seed"], answer["deterministic"]) == (7, 1, False)
    assert main(["eval", path, "--episodes", "7", "--seed", "1", "--checkpoint", "best", "--deterministic"]) == 0
    (line,), _ = lines(capsys)
    assert line.startswith(f"step {Run(path).best_step()}: deterministic mean return ")

    assert main(["resume", path]) == 0
    (line,), _ = lines(capsys)
    assert line == f"{path} finished at step {Run(path).steps()[-1]}; continue it with --total-steps N"
    assert main(["resume", path, "--total_steps", "800", "--quiet"]) == 0
    (line,), _ = lines(capsys)
    assert line.startswith(f"step {Run(path).steps()[-1]}: mean return ")
    assert Run(path).steps()[-1] >= 800


def test_resume_from_an_earlier_checkpoint(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path / "run", checkpoint_interval=100)
    earlier, *later = run.steps()
    assert main(["resume", str(run.path), "--checkpoint", str(earlier)]) == 0
    assert f"resuming {run.path} at step {earlier}\n" in capsys.readouterr().out
    assert run.steps() == [earlier, *later]


SUITE = "algorithms: [ppo-clip]\nenvironments: {CartPole-v1: {total_steps: 256}}\nseeds: [0]\nfinal_episodes: 2\n"


@pytest.mark.slow
def test_benchmark_runs_its_jobs_again_to_overwrite(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_text(SUITE)
    for more, kept in (([], False), ([], True), (["--overwrite"], False)):
        assert main(["benchmark", "suite.yaml", "--out", "results", "--jobs", "1", *more]) == 0
        out = capsys.readouterr().out
        assert ("1 of 1 jobs are done already" in out) == kept
        assert out.endswith("1 of 1 jobs are done; show them with: rlzoo report results\n")
        assert Path("results/report.md").exists() == kept
        assert main(["report", "results"]) == 0


def test_json_of_train_is_alone_on_standard_output(tmp_path, capsys):
    trpo = ["train", "trpo", "CartPole-v1", "--vf-minibatch-size", "100"]
    assert main([*trpo, "--out", str(tmp_path / "run"), "--json", *SMALL]) == 0
    (out,), err = lines(capsys)
    answer = json.loads(out)
    assert answer["run"] == str(tmp_path / "run")
    assert answer["stochastic"]["episodes"] == answer["deterministic"]["episodes"] == 100
    assert err[0] == f"training in {tmp_path / 'run'}"


def test_every_kind_of_option(tmp_path):
    options = [
        *("--hidden", "4", "5", "--activation=relu", "--normalize_obs", "--no-shared-trunk", "--stop-kl", "none"),
        *("--stop-return", "-1e9", "--total-steps", "1_000", "--env-kwargs", "sutton_barto_reward=true"),
        *("--minibatch-size", "5e1", "--noise-correlation", ".5", "--no-vectorized", "--threads", "1"),
    ]
    path = tmp_path / "run"
    assert main(["train", "ppo-clip", "CartPole-v1", "--out", str(path), *SMALL_PPO, *options]) == 0
    config = Run(path).read_config()
    assert config.task.network.hidden == (4, 5)
    assert config.task.network.activation == "relu"
    assert config.task.network.normalize_obs
    assert config.algorithm.stop_kl is None
    assert config.algorithm.minibatch_size == 50
    assert (config.stop_return, config.total_steps) == (-1e9, 1000)
    assert config.task.env_kwargs == {"sutton_barto_reward": True}
    assert not config.task.vectorized
    assert Run(path).finished


def test_schedules(tmp_path, monkeypatch):
    (tmp_path / "own_schedules.py").write_text("def half(progress):\n    return 0.5 * (1 - progress) + 0.1\n")
    monkeypatch.chdir(tmp_path)
    options = ["--learning-rate", "linear:3e-4:0", "--clip-coef", "own_schedules:half"]
    assert main(["train", "ppo", "CartPole-v1", "--out", "run", *SMALL_PPO, *options]) == 0
    config = Run("run").read_config()
    assert (config.algorithm.learning_rate, config.algorithm.clip_coef) == ("linear:3e-4:0", "own_schedules:half")
    flat = json.loads(Path("run/config.json").read_text())
    assert (flat["learning_rate"], flat["clip_coef"]) == ("linear:3e-4:0", "own_schedules:half")
    assert main(["resume", "run", "--total-steps", "800", "--quiet"]) == 0


def test_schedule_of_a_module_that_is_out_of_range(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad_schedules.py").write_text("def negative(progress):\n    return 0.5 - progress\n")
    monkeypatch.chdir(tmp_path)
    given = ["--learning-rate", "bad_schedules:negative"]
    assert main(["train", "ppo", "CartPole-v1", "--out", "run", *SMALL_PPO, *given]) == 2
    line = "learning_rate must be above 0 throughout, got 'bad_schedules:negative'"
    assert capsys.readouterr().err == f"rlzoo: {line}\n"
    assert not Path("run").exists()


def test_module_that_ends_the_program_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit()\n")
    (tmp_path / "ends.py").write_text("raise SystemExit('bye')\n")
    monkeypatch.chdir(tmp_path)
    leaves = f"importing leaves raised SystemExit ({tmp_path}/leaves.py:2)"
    ends = f"importing ends raised SystemExit: bye ({tmp_path}/ends.py:1)"
    for arguments, line in {
        "ppo leaves:Env": f"environment 'leaves:Env': cannot import module 'leaves': {leaves}",
        "leaves:Algorithm CartPole-v1": f"algorithm 'leaves:Algorithm': {leaves}",
        "ppo CartPole-v1 --estimator ends:X": f"estimator 'ends:X': {ends}",
        "ppo CartPole-v1 --learning-rate ends:x": "learning_rate must be a number, linear:START:END or module:function,"
        f" got 'ends:x': schedule 'ends:x': {ends}",
        "ppo CartPole-v1 --wrapper ends:X": f"wrapper 'ends:X': {ends}",
    }.items():
        assert main(["train", *arguments.split()]) == 2
        assert capsys.readouterr().err == f"rlzoo: {line}\n"


def test_code_that_ends_the_program_elsewhere_is_named(run, monkeypatch, capsys):
    def leave(*_, **__):
        raise SystemExit("bye")

    monkeypatch.setattr("rlzoo.core.task.play_episodes", leave)
    assert main(["eval", str(run.path)]) == 1
    assert capsys.readouterr().err == "rlzoo: code that the command loaded ended the program: SystemExit('bye')\n"


def test_threads_of_the_environment_that_are_no_number_are_not_used(monkeypatch):
    for text in ("9" * 5000, "٣", "-1", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert from_environment() is None


def test_without_fast_implementations(tmp_path):
    path = tmp_path / "run"
    assert main(["train", "ppo", "CartPole-v1", "--out", str(path), "--no-fast", "--seed", "2", *SMALL_PPO]) == 0
    assert Run(path).read_config().fast is False
    assert main(["eval", str(path), "--episodes", "2"]) == 0


def test_estimator_of_choice(tmp_path):
    arguments = ["train", "trpo", "CartPole-v1", "--estimator", "monte-carlo", "--gamma", "0.9", *SMALL]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    flat = Run(tmp_path / "run").read_config().to_dict()
    assert (flat["estimator"], flat["gamma"]) == ("monte-carlo", 0.9)


def test_preset_gives_the_defaults_of_the_help_page(monkeypatch, capsys):
    monkeypatch.setattr(
        "rlzoo.runs.configuration.defaults.find_preset", lambda *pair: {"gamma": 0.123, "hidden": [7, 7]}
    )
    assert main(["train", "ppo", "CartPole-v1", "--help"]) == 0
    page = capsys.readouterr().out
    assert "Discount factor, in [0, 1]. (default: 0.123)" in page
    assert "(default: 7 7)" in page
    assert "Maximise E[min(" in page
    assert main(["train", "ppo", "CartPole-v1", "--no-preset", "--help"]) == 0
    assert "0.123" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["commands:", "resume RUN"]),
        (["train", "--help"], ["trust region policy optimisation", "--total-steps", "--hidden", "--out none|STR"]),
        (["train", "trpo", "--help"], ["--max-kl", "--gae-lambda", "E[KL(π_old ‖ π_θ)] ≤ δ"]),
        (["train", "reinforce", "CartPole-v1", "-h"], ["--no-baseline", "--gamma FLOAT"]),
        (["resume", "--help"], ["--total-steps", "--checkpoint none|INT"]),
        (["eval", "-h"], ["--episodes INT", "--json", "RUN"]),
        (["play", "--help"], ["--video none|STR", "--json"]),
        (["list", "--help"], ["--json"]),
        (["--version"], ["rlzoo 0."]),
    ],
)
def test_help(arguments, words, capsys):
    assert main(arguments) == 0
    page = capsys.readouterr().out
    assert all(word in page for word in words)
    assert all(len(line) <= 120 for line in page.splitlines())


def test_no_command_prints_the_help_and_fails(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_list(capsys):
    assert main(["list"]) == 0
    page = capsys.readouterr().out
    assert "ppo-penalty" in page
    assert "CartPole-v1" in page
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed["algorithms"]) == ["reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"]
    assert {"id": "CartPole-v1", "vectorized": True}.items() <= next(
        e for e in listed["environments"] if e["id"] == "CartPole-v1"
    ).items()


def test_list_of_language_tasks(monkeypatch, capsys):
    presets = {"CartPole-v1": ["npg", "trpo"], "Reviews": ["ppo-clip"]}
    monkeypatch.setattr("rlzoo.runs.configuration.presets.environments", lambda: presets)
    monkeypatch.setattr("rlzoo.runs.configuration.presets.recipes", lambda: {"gentle": {"beta": 0.2}})
    assert main(["list"]) == 0
    page = capsys.readouterr().out
    controls, rest = page.split("language tasks\n", 1)
    tasks, suites = rest.split("suites for rlzoo benchmark\n")
    assert {"classic", "smoke"} <= {*suites.split()}
    assert "  CartPole-v1                    npg trpo\n" in controls
    assert "Reviews" not in controls
    assert [line.split()[0] for line in tasks.splitlines() if line.startswith("  ") and line[2] != " "] == [
        *("RandomWalks", "Reviews", "Arithmetic", "Countdown", "Calculator"),
        *("Sums", "SmallSums", "Sentiment", "Instructions", "Prompts"),
        "gentle",
    ]
    assert "presets: ppo-clip\n" in tasks
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "Reviews" not in {env["id"] for env in listed["environments"]}
    (reviews,) = (task for task in listed["language_tasks"] if task["id"] == "Reviews")
    assert reviews["presets"] == ["ppo-clip"]
    assert "reviews" in reviews["description"]
    assert listed["recipes"] == {"gentle": {"beta": 0.2}}
    assert listed["suites"] == suites.split()


@pytest.fixture
def threads(monkeypatch):
    """The numbers of threads that commands set, without variables of the user."""
    counts = []
    monkeypatch.setattr("torch.set_num_threads", counts.append)
    monkeypatch.setattr("rlzoo.core.system.threads._chosen", None)
    for name in (
        "OMP_WAIT_POLICY",
        "THP_MEM_ALLOC_ENABLE",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
    ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return counts


@pytest.mark.parametrize("env", ["CartPole-v1", "RandomWalks"])
def test_threads_are_one_until_the_model_is_known(env, threads):
    assert main(["train", "ppo", env, "--help"]) == 0
    assert threads == [1]
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == "1"


def test_threads_of_the_user(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert main(["train", "ppo", "RandomWalks", "--help"]) == 0
    assert main(["train", "ppo", "RandomWalks", "--threads", "2", "--help"]) == 0
    assert threads == [3, 2]
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_threads_of_the_run(threads, tmp_path, monkeypatch):
    for recorded, expected in ((5, 5), (None, 1), ("many", 1), (10**6, 1)):
        (tmp_path / "config.json").write_text(json.dumps({"env": "RandomWalks", "threads": recorded}))
        for command in ("eval", "resume", "play"):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            assert main([command, str(tmp_path)]) == 2
            assert main([command, str(tmp_path), "--threads", "3"]) == 2
        assert threads == [expected, 3] * 3
        threads.clear()


def test_threads_that_are_not_the_usual_one_are_said(threads, tmp_path, capsys):
    assert main(["train", "ppo", "CartPole-v1", *SMALL_PPO, "--out", str(tmp_path / "a"), "--threads", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "using 2 threads (--threads)"
    assert main(["train", "ppo", "CartPole-v1", *SMALL_PPO, "--out", str(tmp_path / "b"), "--threads", "1"]) == 0
    assert "using" not in capsys.readouterr().out


def test_help_shows_the_common_settings_and_all_on_demand(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "84")
    pages = {}
    for option in ("--help", "--help-all"):
        assert main(["train", "ppo", "CartPole-v1", option]) == 0
        pages[option] = capsys.readouterr().out
        assert max(map(len, pages[option].splitlines())) <= 84
    titles = re.findall(r"^\W*([\w -]*?) ?options\W*$", pages["--help"], re.MULTILINE)
    assert titles == [
        *("", "Run", "GAE", "PPO-clip", "Environment", "Network"),
        *("Evaluation and files", "Memory and speed"),
    ]
    assert "--learning-rate" in pages["--help"]
    assert "--vf-coef" not in pages["--help"]
    assert "--help-all shows 15 more settings." in pages["--help"]
    assert "--vf-coef" in pages["--help-all"]
    for command in ("sft", "reward-model"):
        assert main([command, "--help"]) == 0
        assert "--warmup" not in capsys.readouterr().out
        assert main([command, "--help-all"]) == 0
        assert "--warmup" in capsys.readouterr().out


def test_help_of_a_class_without_a_docstring_shows_no_signature(tmp_path, monkeypatch, capsys):
    """A dataclass has its signature as docstring then."""
    (tmp_path / "bare.py").write_text(
        "import dataclasses, rlzoo\n@dataclasses.dataclass(frozen=True)\nclass Bare(rlzoo.PPOClip):\n    own: int = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "bare.py:Bare", "CartPole-v1", "--help"]) == 0
    page = capsys.readouterr().out
    assert "--own INT" in page
    assert "Bare(" not in page


def test_help_pages_have_no_stray_line_breaks(capsys):
    """tyro keeps the line breaks of docstrings: a text of an option is one line, and a group has a first paragraph."""
    found = []
    for path in Path(main.__code__.co_filename).parent.glob("*.py"):
        for cls in (x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.ClassDef)):
            pairs = itertools.pairwise(cls.body)
            texts = [y.value.value for x, y in pairs if isinstance(x, ast.AnnAssign) and is_text(y)]
            found += [text for text in texts if "\n" in text]
    assert not found
    assert main(["train", "trpo", "CartPole-v1", "--help"]) == 0
    rows = capsys.readouterr().out.splitlines()
    (first,) = (i for i, row in enumerate(rows) if "Maximise" in row)
    assert "≤ δ." in rows[first]
    assert not rows[first + 1].strip("│|─- ")
    assert rows[first + 2].strip("│| ").startswith("--")


def is_text(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize(
    ("alias", "name"), [("grpo", "group-norm"), ("dr-grpo", "group-mean"), ("rloo", "leave-one-out")]
)
def test_estimators_by_the_names_that_people_know(alias, name, tmp_path):
    arguments = ["train", "reinforce", "CartPole-v1", "--estimator", alias, "--total-steps", "100", "--quiet"]
    assert main([*arguments, "--no-preset", "--final-eval-episodes", "2", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["estimator"] == name


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        ("CartPole-v1 --total-steps 500_000", "compile", None),
        ("CartPole-v1 --total-steps 500_000 --no-compile", "compile", False),
        ("CartPole-v1 --total-steps 500_000 --no_compile", "compile", False),
        ("CartPole-v1 --total-steps 500_000 --compile", "compile", True),
        ("HalfCheetah-v5 --total-steps 100_000 --compile", "compile", True),  # its own number of steps gains by it
        ("SmallSums --lora-rank 8 --learning-rate=1e-5", "learning_rate", 1e-5),  # the default without --lora-rank
    ],
)
def test_a_setting_that_is_named_is_given_though_it_may_equal_a_default(arguments, name, expected, monkeypatch):
    given = {}

    def train(*names, **settings):
        given.update(settings)
        raise ConfigError("enough")

    monkeypatch.setattr("rlzoo.runs.train.train", train)
    assert main(["train", "ppo", *arguments.split()]) == 2
    assert given.get(name) == expected


def test_modules_in_the_current_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_algorithm.py").write_text(
        "from dataclasses import dataclass\n"
        "from rlzoo.algorithms.reinforce import Reinforce\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Reinforce):\n"
        "    what: type = int\n"
        "    n: int = 5\n"
        '    """Of my own."""\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert main(["train", "own_algorithm:Mine", "CartPole-v1", "--help"]) == 0
    page = capsys.readouterr().out
    assert "Of my own. (default: 5)" in page


# What does not


FIRST = "algorithm and environment are missing: rlzoo train ALGORITHM ENV [--option value ...]"
KNOWN = "(known: reinforce, npg, trpo, ppo-penalty, ppo-clip, ppo)"
NO_SCREEN = "there is no screen to open a window on: give --video FILE.mp4"
PER_PROMPT = "responses_per_batch must be a multiple of responses_per_prompt = 4, got 6"
SDPA = "attention: trpo needs forward-mode derivatives, which sdpa does not have; use eager"
ATTENTION = "invalid choice 'sdap' for argument '--attention'. Expected one of ('auto', 'eager', 'sdpa')."


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("trian ppo CartPole-v1", "no command 'trian'; did you mean 'train'?"),
        ("bench", "no command 'bench'; did you mean 'benchmark'?"),
        ("benchmark smoky", "no suite 'smoky'; did you mean 'smoke'? (rlzoo list shows them; a file ends in .yaml)"),
        ("report", "runs or folders of results are missing: rlzoo report PATH [PATH ...]"),
        ("report nowhere", "nowhere holds neither runs nor results of a suite"),
        ("--hepl", "no option '--hepl'; did you mean '--help'?"),
        ("train", FIRST),
        ("train ppo", FIRST),
        ("train --out runs/a ppo CartPole-v1", FIRST),
        ("train pppo CartPole-v1", f"no algorithm 'pppo'; did you mean 'ppo'? {KNOWN}"),
        ("train trop CartPole-v1", f"no algorithm 'trop'; did you mean 'trpo'? {KNOWN}"),
        ("train CartPole-v1 ppo-clip", "the algorithm comes before the environment: rlzoo train ppo-clip CartPole-v1"),
        ("train CartPole-v1 --seed 1", f"no algorithm 'CartPole-v1' {KNOWN}"),
        ("train nowhere:X CartPole-v1", "algorithm 'nowhere:X': no module 'nowhere'"),
        ("train ppo CartPol-v1", "no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("train ppo RandomWalk", "no environment 'RandomWalk'; did you mean 'RandomWalks'?"),
        ("train ppo nowhere:X", "environment 'nowhere:X': cannot import module 'nowhere': no module 'nowhere'"),
        ("train ppo CartPole-v1 --gama 1", "no option '--gama'; did you mean '--gamma'?"),
        ("train ppo CartPole-v1 --gama=1", "no option '--gama'; did you mean '--gamma'?"),
        ("train ppo CartPole-v1 --max-kl 1", "ppo-clip has no max_kl; trpo has"),
        ("train trpo CartPole-v1 --ent-coef=1", "trpo has no ent_coef; reinforce, ppo-penalty, ppo-clip have"),
        ("train ppo CartPole-v1 --top-p 1", "no option '--top-p'"),
        ("train grpo RandomWalks", "no algorithm 'grpo'; use ppo-clip --estimator grpo"),
        ("train GRPO RandomWalks", "no algorithm 'GRPO'; use ppo-clip --estimator grpo"),
        ("train own.VMPO CartPole-v1", f"no algorithm 'own.VMPO' {KNOWN}; a class of your own is own:VMPO"),
        ("train a2c CartPole-v1", "no algorithm 'a2c'; use ppo-clip --epochs 1 --minibatch-size all"),
        ("train SAC CartPole-v1", "no algorithm 'SAC': it is off-policy, and all algorithms here are on-policy"),
        (
            "train PPO CartPole-v1",
            "no algorithm 'PPO'; did you mean 'ppo'? (known: reinforce, npg, trpo, ppo-penalty, ppo-clip, ppo)",
        ),
        (
            "train ppo Atari/Pong-v5",
            "no environment 'Atari/Pong-v5': no imported module registers Atari/; "
            "name the one that does before a colon, such as ale_py:Atari/Pong-v5",
        ),
        ("train ppo RandomWalks --kl-coef 0.1", "no option '--kl-coef'; did you mean '--beta'?"),
        ("train ppo CartPole-v1 --kl-coef 0.1", "ppo-clip has no kl_coef; ppo-penalty has"),
        ("train ppo CartPole-v1 --lr 1", "no option '--lr'; did you mean '--learning-rate'?"),
        (
            "train ppo RandomWalks --minibatch-size 8",
            "no option '--minibatch-size'; did you mean '--minibatch-responses'?",
        ),
        ("train ppo CartPole-v1 --preset", "Missing value for argument '--preset'. Expected 1 values."),
        ("train ppo CartPole-v1 --out", "Missing value for argument '--out'. Expected 1 values."),
        ("train ppo RandomWalks --preset x --no-preset", "--preset and --no-preset contradict each other"),
        ("train ppo RandomWalks --num-steps 3", "no option '--num-steps'"),
        ("train ppo RandomWalks --responses-per-batch 6 --responses-per-prompt 4", PER_PROMPT),
        ("train trpo RandomWalks --attention sdpa", SDPA),
        ("train trpo RandomWalks --attention sdap", ATTENTION),
        (
            "train ppo Prompts",
            "model is missing: Prompts has none of its own; give a directory, a Hub name or a Hugging Face model",
        ),
        ("train ppo CartPole-v1 extra", "unexpected argument 'extra'"),
        ("train ppo CartPole-v1 --gamma", "Missing value for argument '--gamma'. Expected 1 values."),
        ("train ppo CartPole-v1 --seed 1 --jobs 2", "--jobs is for several seeds: --seed 1 2 3"),
        ("train ppo CartPole-v1 --gamma x", "--gamma: 'x' is not a number"),
        ("train ppo CartPole-v1 --gamma 1.5", "gamma must be in [0, 1], got 1.5"),
        ("train ppo CartPole-v1 --gamma nan", "gamma must be in [0, 1], got nan"),
        ("train ppo CartPole-v1 --seed -1", "seed must be at least 0, got -1"),
        ("train ppo CartPole-v1 --seed 1.5", "--seed: '1.5' is not an integer"),
        ("train ppo CartPole-v1 --total-steps 1e400", "--total-steps: '1e400' is not an integer"),
        ("train ppo CartPole-v1 --num-envs 1e20", f"num_envs must be at most {2**31 - 1}, got {10**20}"),
        ("train ppo CartPole-v1 --hidden 8 1e20", f"hidden must be at most {2**31 - 1}, got (8, {10**20})"),
        ("train ppo CartPole-v1 --eval-episodes 1e20", f"eval_episodes must be at most {2**31 - 1}, got {10**20}"),
        (
            "train ppo CartPole-v1 --learning-rate 1e308",
            "learning_rate must be at most 3.4e+38 in absolute value, got 1e+308",
        ),
        (
            "train ppo CartPole-v1 --learning-rate linear:1e308:0",
            "learning_rate must be at most 3.4e+38 in absolute value, got linear:1e308:0",
        ),
        (
            "train ppo CartPole-v1 --learning-rate math:log",
            "learning_rate must be a function of the progress, which goes from 0 to 1 "
            "(ValueError: math domain error), got 'math:log'",
        ),
        (
            "train ppo CartPole-v1 --learning-rate sys:exit",
            "learning_rate must be a function of the progress, which goes from 0 to 1 (SystemExit: 0.0), "
            "got 'sys:exit'",
        ),
        (
            f"train ppo CartPole-v1 --total-steps {'9' * 400}",
            "total_steps must be below 3.40282e+38, got an integer of 1329 bits",
        ),
        ("train ppo CartPole-v1 --eval-interval 1e400", "--eval-interval: expected none|INT, got '1e400'"),
        (f"train ppo CartPole-v1 --threads {2**63}", f"threads must be at most 1024, got {2**63}"),
        (
            "train ppo CartPole-v1 --learning-rate liner:1:0",
            "learning_rate must be a number, linear:START:END or module:function, got 'liner:1:0': "
            "schedule 'liner:1:0': no module 'liner:1'",
        ),
        (
            "train ppo CartPole-v1 --learning-rate linear:1",
            "learning_rate must be above 0, or a schedule such as linear:1e-3:0, got 'linear:1'",
        ),
        (
            "train ppo CartPole-v1 --learning-rate linear:-1:0",
            "learning_rate must be above 0 throughout, got 'linear:-1:0'",
        ),
        (
            "train ppo CartPole-v1 --learning-rate fast",
            "learning_rate must be above 0, or a schedule such as linear:1e-3:0, got 'fast'",
        ),
        ("train ppo CartPole-v1 --total-steps 0", "total_steps must be at least 1, got 0"),
        ("train ppo CartPole-v1 --hidden 0", "hidden sizes must be at least 1, got (0,)"),
        ("train ppo CartPole-v1 --hidden 64,32", "--hidden: values are separated by spaces: --hidden 64 32"),
        ("train ppo CartPole-v1 --hidden=[64,32]", "--hidden: values are separated by spaces: --hidden 64 32"),
        ("train ppo CartPole-v1 --hidden 8 x", "--hidden: Could not find valid parse for arguments: ['8', 'x']"),
        (
            "train ppo CartPole-v1 --activation tan",
            "invalid choice 'tan' for argument '--activation'. Expected one of ('tanh', 'relu').",
        ),
        ("train ppo CartPole-v1 --env-kwargs a", "--env-kwargs: 'a' is not of the form key=value"),
        ("train ppo Pendulum-v1 --env-kwargs g=abc", "env_kwargs: g must be a number, got 'abc'"),
        ("train ppo Pendulum-v1 --env-kwargs g=NaN", "env_kwargs: g must be a finite number, got nan"),
        (
            "train ppo CartPole-v1 --env-kwargs sutton_barto_reward=1",
            "env_kwargs: sutton_barto_reward must be True or False, got 1",
        ),
        (
            "train ppo CartPole-v1 --env-kwargs max_episode_steps=x",
            "env_kwargs: max_episode_steps must be an integer, got 'x'",
        ),
        (
            "train ppo CartPole-v1 --env-kwargs max_episode_steps=0",
            "environment 'CartPole-v1' cannot be made: num_envs=8 and max_episode_steps=0 must be positive",
        ),
        ("train ppo CartPole-v1 --device abacus", "device must be cpu, cuda, cuda:N or the like, got 'abacus'"),
        (
            "train ppo CartPole-v1 --estimator gea",
            "no estimator 'gea'; did you mean 'gae'? (known: gae, monte-carlo, leave-one-out, group-mean, group-norm)",
        ),
        ("train ppo CartPole-v1 --threads 0", "threads must be at least 1, got 0"),
        ("train ppo CartPole-v1 --threads 1e20", f"threads must be at most 1024, got {10**20}"),
        ("eval RUN --threads 3e9", "threads must be at most 1024, got 3000000000"),
        (
            "resume",
            "Missing from rlzoo resume: RUN Run directory, or the directory of the runs of several seeds. (required)",
        ),
        ("resume RUN --total-steps", "Missing value for argument '--total-steps'. Expected 1 values."),
        ("train ppo CartPole-v1 --env Pendulum-v1", "no option '--env'"),
        ("resume nowhere", "nowhere holds no run (no config.json)"),
        ("resume RUN --checkpoint 5", "RUN has no checkpoint 5; it has STEPS"),
        ("resume RUN --total-steps 0", "total_steps must be at least 1, got 0"),
        ("eval nowhere", "nowhere holds no run (no config.json)"),
        ("eval RUN --episodes 0", "episodes must be at least 1, got 0"),
        ("eval RUN --episodes many", "--episodes: 'many' is not an integer"),
        ("eval RUN --episodes 1e20", f"episodes must be at most {2**31 - 1}, got {10**20}"),
        ("eval RUN --episodes 1e400", "--episodes: '1e400' is not an integer"),
        ("eval RUN --checkpoint 1e400", "--checkpoint: expected none|INT|best, got '1e400'"),
        ("eval RUN --seed -1", "seed must be at least 0, got -1"),
        ("eval RUN --checkpoint 5", "RUN has no checkpoint 5; it has STEPS"),
        (
            "eval RUN --checkpoint bst",
            "--checkpoint: expected none|INT|best, got 'bst'",
        ),
        ("eval RUN --epsodes 3", "no option '--epsodes'; did you mean '--episodes'?"),
        ("play RUN", NO_SCREEN),
        ("play RUN --video x.avi", "video must end in .mp4 or .gif, got 'x.avi'"),
        ("play RUN --video nowhere/x.mp4", "video: there is no directory nowhere"),
        ("list --jsn", "no option '--jsn'; did you mean '--json'?"),
        ("list everything", "unexpected argument 'everything'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, line, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    steps = ", ".join(map(str, run.steps()))
    assert main(arguments.replace("RUN", str(run.path)).split()) == 2
    if arguments != "resume":
        line = line.replace("RUN", str(run.path)).replace("STEPS", steps)
    assert capsys.readouterr() == ("", f"rlzoo: {line}\n")
    assert os.listdir(tmp_path) == []


def test_number_that_is_not_finite_is_one_line_and_exit_code_1(run, monkeypatch, capsys):
    def broken(*_):
        raise NonFiniteError("gradient of the loss in epoch 1 is not finite; lower learning_rate")

    monkeypatch.setattr("rlzoo.runs.run.Run.step_of", broken)
    assert main(["eval", str(run.path)]) == 1
    assert capsys.readouterr().err == "rlzoo: gradient of the loss in epoch 1 is not finite; lower learning_rate\n"


def test_directory_that_holds_a_run_is_left_alone(run, capsys):
    before = short_runs.outcome(run)
    assert main(["train", "ppo", "CartPole-v1", "--out", str(run.path)]) == 2
    _, (line,) = lines(capsys)
    assert (
        line == f"rlzoo: {run.path} already holds a run: continue it with rlzoo resume {run.path}, "
        "or replace it with --overwrite"
    )
    assert short_runs.outcome(run) == before


def test_overwrite(tmp_path):
    run = short_runs.quick_run(tmp_path, seed=1)
    before = {path.name for path in tmp_path.rglob("*")}
    assert main(["report", str(tmp_path)]) == 0
    report = {path.name for path in tmp_path.rglob("*")} - before
    assert {"report.md", "figures", "overview.svg", "scores.csv"} <= report
    arguments = ["train", "ppo", "CartPole-v1", "--out", str(tmp_path), "--quiet", *SMALL_PPO]
    assert main([*arguments, "--overwrite"]) == 0
    assert run.read_config().seed == 0
    assert report.isdisjoint(path.name for path in tmp_path.rglob("*"))  # it was that of the other run


def test_tracker_without_its_package_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", "ppo", "CartPole-v1", "--track", "wandb", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr() == ("", "rlzoo: track: wandb is not installed: pip install wandb\n")
    assert not (tmp_path / "run").exists()


def test_programming_errors_keep_their_traceback(run, monkeypatch):
    monkeypatch.setattr("rlzoo.runs.run.Run.step_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["eval", str(run.path)])


# In a process of its own


def command(*arguments, **kwargs):
    return subprocess.run([sys.executable, "-m", "rlzoo", *arguments], capture_output=True, text=True, **kwargs)


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["resume", "--help"], ["eval", "--help"], ["trian"]])
def test_fast_commands_import_no_torch(arguments):
    code = f"""
import sys
from rlzoo.cli import main
from rlzoo.core.system.errors import NonFiniteError
main({arguments!r})
heavy = {{"torch", "transformers", "tensorboard", "matplotlib", "rich"}} & sys.modules.keys()
sys.exit(1 if heavy else 0)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "arguments", [["train", "trpo", "CartPole-v1", "--max-kl", "0.01"], ["eval", "."], ["resume", "."], ["play", "."]]
)
def test_numpy_is_imported_with_its_number_of_threads(arguments, tmp_path):
    (tmp_path / "config.json").write_text('{"algorithm": "trpo", "env": "CartPole-v1"}')
    code = f"""
import os, sys
from rlzoo.cli import common, main
common.set_variables = lambda threads: os._exit("numpy" in sys.modules)
main({arguments!r})
os._exit(2)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def test_errors_of_a_language_task_come_before_a_model(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n")
    train = ["train", "ppo-clip", "Prompts", "--out", str(tmp_path / "run"), "--model", "gpt2"]
    wrong = {
        "no option '--modle'": ["--modle", "gpt2"],
        "no such file": ["--prompts", str(tmp_path / "other.txt"), "--reward", "vader:score"],
        "no module 'nowhere'": ["--prompts", str(prompts), "--reward", "nowhere:score"],
    }
    code = f"""
import sys
from rlzoo.cli import main
for more in {list(wrong.values())!r}:
    assert main([*{train!r}, *more]) == 2
sys.exit("transformers.modeling_utils" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for message, line in zip(wrong, process.stderr.splitlines(), strict=True):
        assert message in line


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of one process is read from /proc")
def test_memory_of_a_run(tmp_path):
    code = f"""
import sys
from rlzoo.cli import main
from rlzoo.core.system.errors import NonFiniteError
assert main(["train", "ppo", "CartPole-v1", "--total-steps", "20000", "--out", {str(tmp_path / "run")!r}]) == 0
assert "transformers" not in sys.modules and "tensorflow" not in sys.modules
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(process.stdout.splitlines()[-1]) < 500_000


def test_evaluation_in_a_changed_environment_says_so(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path / "run", env="Pendulum-v1", minibatch_size=100)
    lines = []
    for more in ([], ["--env-kwargs", "g=1.0"]):
        assert main(["eval", str(run.path), "--episodes", "2", *more]) == 0
        lines.append(capsys.readouterr().out)
    same, changed = lines
    assert changed.endswith("; in a changed environment, g=1.0\n")
    assert changed.split(";")[0] != same.strip()
    assert main(["resume", str(run.path), "--learning-rate", "1"]) == 2
    assert "rlzoo train --config RUN --model RUN --learning-rate X starts a new run" in capsys.readouterr().err
