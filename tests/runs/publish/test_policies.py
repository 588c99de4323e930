"""The policy of a run: loaded, exported, and shared on the Hugging Face hub or in a folder."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import short_runs
import torch
import yaml
from gymnasium import spaces

import rlzoo
from rlzoo.cli import main
from rlzoo.control.export import FORMATS
from rlzoo.core.env import VectorEnv
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import ConfigError, RunError
from rlzoo.core.task import EnvTask
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.publish import card
from rlzoo.runs.publish.policies import SUFFIXES

OBSERVATIONS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "run"
    return short_runs.quick_run(path, total_steps=1200, normalize_obs=True, learning_rate=0.01)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Loading


def test_policy_of_a_checkpoint(run):
    first, last = run.steps()[0], run.steps()[-1]
    expected = {}
    for step in (first, last):
        model = rlzoo.load_model(run, step).eval()
        with torch.no_grad():
            expected[step] = model.act(torch.from_numpy(OBSERVATIONS))[0].mode.numpy()
        assert np.array_equal(rlzoo.load_policy(run, step)(OBSERVATIONS), expected[step])
    assert not np.array_equal(expected[first], expected[last])
    assert np.array_equal(rlzoo.load_policy(run)(OBSERVATIONS), expected[last])
    assert np.array_equal(
        rlzoo.load_policy(run.path, "best")(OBSERVATIONS), rlzoo.load_policy(run, run.best_step())(OBSERVATIONS)
    )


def test_sampled_actions_follow_the_seed(run):
    sampled = [rlzoo.load_policy(run, deterministic=False, seed=seed)(OBSERVATIONS) for seed in (1, 1, 2)]
    assert np.array_equal(sampled[0], sampled[1])
    assert not np.array_equal(sampled[0], sampled[2])
    assert not np.array_equal(sampled[0], rlzoo.load_policy(run)(OBSERVATIONS))


def test_policy_plays_in_a_vector_environment(run):
    policy, env = rlzoo.load_policy(run), gymnasium.make_vec("CartPole-v1", 3)
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        obs, reward, *_ = env.step(policy(obs))
    assert reward.tolist() == [1, 1, 1]
    env.close()


class Matching(gymnasium.Env):
    """Pays 1 for the action that equals the observed number, which is part of a dict; both count from −1."""

    observation_space = spaces.Dict({"number": spaces.Discrete(3, start=-1), "noise": spaces.Box(-1, 1, (2,))})
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.obs = self.observation_space.sample()
        return self.obs, {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(action == self.obs["number"])
        self.obs = self.observation_space.sample()
        return self.obs, reward, self.np_random.random() < 0.1, False, {}


def test_policy_of_an_environment_with_dicts_and_a_start(tmp_path):
    gymnasium.register("Matching-v0", Matching)
    try:
        run = short_runs.quick_run(
            tmp_path / "run", env="Matching-v0", total_steps=3000, learning_rate=0.02, epochs=4, gamma=0.5
        )
        policy = rlzoo.load_policy(run)
        noise = np.zeros(2, np.float32)
        assert [policy({"number": n, "noise": noise}) for n in (-1, 0, 1)] == [-1, 0, 1]
        flat = policy.flatten({"number": np.array([-1, 0, 1]), "noise": np.zeros((3, 2))})
        session = pytest.importorskip("onnxruntime").InferenceSession(rlzoo.export(run, out=tmp_path / "policy.onnx"))
        assert session.run(None, {"obs": flat})[0].tolist() == [-1, 0, 1]
    finally:
        del gymnasium.registry["Matching-v0"]


def test_policy_of_a_model_of_ones_own_needs_it_again(tmp_path):
    def make():
        env = gymnasium.make("CartPole-v1")
        return rlzoo.Network(hidden=(3,)).build(env.observation_space, env.action_space)

    run = short_runs.quick_run(tmp_path / "run", model=make())
    for load in (rlzoo.load_policy, rlzoo.export):
        with pytest.raises(RunError, match="pass model="):
            load(run)
    assert rlzoo.load_policy(run, model=make())(OBSERVATIONS).shape == (200,)
    assert rlzoo.export(run, "c", tmp_path / "policy.h", model=make()).read_text().count("rlzoo_w1[]") == 1
    rlzoo.push(run, tmp_path / "shared", model=make())
    assert "They are needed to load it:\n\n- pass model=... (" in (tmp_path / "shared/README.md").read_text()


class Shifted(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation + 5


def test_policy_of_an_environment_from_objects_takes_the_wrapped_observations(tmp_path):
    objects = {"env": lambda: gymnasium.make("CartPole-v1"), "wrappers": [lambda env: Shifted(env)]}
    run = short_runs.quick_run(tmp_path / "run", **objects, normalize_obs=True)
    with pytest.raises(RunError, match=r"pass env=.*wrappers="):
        rlzoo.load_policy(run)
    policy = rlzoo.load_policy(run, **objects)
    assert policy.model.normalizer.mean.min() > 4
    assert policy(OBSERVATIONS + 5).shape == (200,)
    rlzoo.push(run, tmp_path / "shared", **objects)
    assert "- pass env=... (" in (tmp_path / "shared/README.md").read_text()


def test_seed_below_0(run):
    with pytest.raises(ConfigError, match="seed must be at least 0, got -1"):
        rlzoo.load_policy(run, seed=-1)


class Bare(EnvTask):
    """A task of a user's own, which says nothing of policies outside of training."""

    make_env = VectorEnv
    make_model = ActorCritic

    def __init__(self):
        self.setup = rlzoo.Setup("module:Bare")


def test_task_without_a_policy_says_so():
    with pytest.raises(
        ConfigError, match=r"^module:Bare has no policy for other programs; load_model gives its model$"
    ):
        Bare().policy()


# Exporting


def test_export_of_a_checkpoint_on_the_command_line(run, workplace, capsys):
    step = run.steps()[0]
    assert main(["export", str(run.path), "--format", "c", "--checkpoint", str(step), "--out", "first.h"]) == 0
    assert capsys.readouterr().out == "first.h\n"
    header = Path("first.h").read_text()
    for line in ("run: run", "env: CartPole-v1", "algorithm: ppo-clip", f"step: {step}", "action space: Discrete(2)"):
        assert f"   {line}\n" in header
    assert re.search(rf"   torch: {re.escape(torch.__version__)}\n", header)


def test_export_is_to_onnx_and_to_a_file_called_policy_by_default(run, workplace):
    assert SUFFIXES.keys() == FORMATS.keys()
    session_of = pytest.importorskip("onnxruntime").InferenceSession
    assert main(["export", str(run.path)]) == 0
    (actions,) = session_of("policy.onnx").run(None, {"obs": OBSERVATIONS})
    assert np.array_equal(actions, rlzoo.load_policy(run)(OBSERVATIONS))
    assert main(["export", str(run.path), "--format", "c"]) == 0
    assert "rlzoo_w1[]" in Path("policy.h").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "tflite"], "tflite"),
        (["--checkpoint", "7"], "has no checkpoint 7"),
        (["--out", "."], "directory"),
        (["--out", "pipe"], "out must be a file, and pipe is none"),
        (["--out", "file/policy.h"], "out must be in a directory, and file is a file"),
    ],
)
def test_wrong_use_of_export_is_one_line(run, workplace, capsys, arguments, message):
    os.mkfifo("pipe")
    Path("file").touch()
    assert main(["export", str(run.path), *arguments]) in (1, 2)
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize("seed", [-1, 1.5, None, "a", True])
def test_seed_of_a_policy_is_an_integer_from_0_on(run, seed):
    with pytest.raises(ConfigError, match=r"^seed must be "):
        rlzoo.load_policy(run, seed=seed)


def test_language_model_says_how_to_load_it(tmp_path):
    from rlzoo.lm.tasks.language import LanguageTask

    task = LanguageTask.__new__(LanguageTask)
    task.setup = rlzoo.Setup("RandomWalks", folder=tmp_path)
    with pytest.raises(ConfigError, match=r"^RandomWalks trains a language model: load .*/actor with transformers$"):
        task.policy()


# Sharing


def test_folder_holds_a_run_that_acts_the_same(run, workplace, capsys):
    assert main(["push", str(run.path), "./shared"]) == 0
    assert capsys.readouterr().out == "shared\n"
    assert np.array_equal(rlzoo.load_policy("shared")(OBSERVATIONS), rlzoo.load_policy(run)(OBSERVATIONS))
    assert rlzoo.Run("shared").steps() == run.steps()[-1:]
    assert rlzoo.evaluate("shared", 3).returns.tolist() == rlzoo.evaluate(run, 3).returns.tolist()
    assert Path("shared/curve.png").read_bytes().startswith(b"\x89PNG")


def test_folder_of_an_earlier_checkpoint(run, workplace):
    step = run.steps()[0]
    rlzoo.push(run, Path("shared"), checkpoint=step)
    assert rlzoo.Run("shared").steps() == [step]
    assert f"for {step:,} environment steps" in Path("shared/README.md").read_text()


def test_a_full_disk_is_named_and_leaves_no_part_of_the_folder(run, workplace, capsys, monkeypatch):
    def full(source, target):
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("rlzoo.runs.publish.policies.shutil.copy", full)
        assert main(["push", str(run.path), "./shared"]) == 1
    assert "shared: No space left on device" in capsys.readouterr().err
    assert not Path("shared").exists()
    assert main(["push", str(run.path), "./shared"]) == 0


def test_folder_that_holds_files_is_left_alone(run, workplace, capsys):
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("words")
    assert main(["push", str(run.path), "./mine"]) == 2
    assert capsys.readouterr().err == "rlzoo: mine exists already and is not an empty folder\n"
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_current_directory_cannot_be_replaced(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["push", str(run.path), "."]) == 2
    assert capsys.readouterr().err == "rlzoo: repo is the current directory: name a new one, such as ./policy\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("repo", ["~nobody-of-this-name/x", Path("~nobody-of-this-name")], ids=repr)
def test_folder_of_an_unknown_user_is_named_before_the_model_is_loaded(repo, run, monkeypatch):
    monkeypatch.setattr("rlzoo.runs.publish.policies.load_task", None)
    with pytest.raises(RunError, match=rf"^{repo}: no such home directory: name the folder without ~$"):
        rlzoo.push(run, repo)


def card_of(run, **kwargs):
    rlzoo.push(run, Path("shared"), **kwargs)
    text = Path("shared/README.md").read_text()
    _, metadata, body = text.split("---\n", 2)
    return yaml.safe_load(metadata), body


def test_card_says_what_the_policy_is_and_how_good(run, workplace):
    metadata, body = card_of(run)
    stochastic, deterministic = run.evaluations()[-2:]
    assert metadata["library_name"] == "rlzoo"
    assert {"reinforcement-learning", "CartPole-v1", "ppo-clip"} <= set(metadata["tags"])
    ((result,),) = (entry["results"] for entry in metadata["model-index"])
    assert result["dataset"]["type"] == "CartPole-v1"
    (metric,) = result["metrics"]
    assert metric["type"] == "mean_reward"
    assert metric["value"] == f"{deterministic['mean_return']:.2f} +/- {deterministic['std_return']:.2f}"
    for kind, e in (("stochastic", stochastic), ("deterministic", deterministic)):
        error = e["std_return"] / e["episodes"] ** 0.5
        figures = f"{e['mean_return']:,.2f} | {error:,.2f} | {e['std_return']:,.2f} | {e['episodes']}"
        assert f"| {kind} | {figures} |\n" in body
    assert "| learning_rate | 0.01 |\n" in body
    assert 'rlzoo.load_policy("shared")' in body


def test_card_of_a_checkpoint_that_was_not_evaluated(run, workplace):
    path = run.path / "evaluations.jsonl"
    kept = path.read_text()
    path.write_text("")
    try:
        metadata, body = card_of(run)
    finally:
        path.write_text(kept)
    assert "model-index" not in metadata
    assert "This checkpoint was not evaluated." in body


class Mine(rlzoo.PPOClip):
    """An algorithm of a module that cannot be imported."""

    __module__ = "notebook"


def test_heading_of_objects_is_their_description(tmp_path):
    run = rlzoo.Run.create(tmp_path / "run", make_config(Mine(), lambda: gymnasium.make("CartPole-v1")))
    names = "an instance of Mine of notebook", f"a lambda of {__name__}"
    assert "\n# {} on {}\n".format(*names) in card.card(run, 5, "x", {}, False)
    assert "<b>{}</b> on <b>{}</b>".format(*names) in run._repr_html_()


def test_card_escapes_text(run, workplace):
    path = run.path / "config.json"
    kept = path.read_text()
    nasty = "x | \x1b[31m \u202e \ud800 <script>\n---\n# title `code` [link](http://example.org)"
    path.write_text(json.dumps(json.loads(kept) | {"env_kwargs": {"note": nasty}, "env": nasty}))
    try:
        text = card.card(run, run.steps()[-1], 'x")\n```', {"action space": nasty}, False)
    finally:
        path.write_text(kept)
    body = text.split("\n---\n", 1)[1]
    assert "<script>" not in body
    assert "](http" not in body
    assert "\n# title" not in body
    assert text.replace("\n", "").isprintable()
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "rlzoo"
    assert len([line for line in text.splitlines() if line.startswith("```")]) == 2


# The hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in place of the hub: repository `user/name` is the folder `hub/user/name`."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    root = tmp_path / "hub"
    monkeypatch.syspath_prepend(tmp_path)

    def model_info(api, repo, timeout):
        assert timeout <= 3
        if not (root / repo).is_dir():
            error = huggingface_hub.errors.RepositoryNotFoundError
            raise error.__new__(error)

    def create_repo(api, repo, private, exist_ok):
        assert exist_ok
        (root / repo).mkdir(parents=True, exist_ok=True)
        (root / repo / "private").write_text(str(private))
        return f"https://huggingface.co/{repo}"

    def upload_folder(api, repo_id, folder_path, delete_patterns, commit_message):
        for file in [path for path in (root / repo_id).rglob("*") if path.is_file()]:
            if any(fnmatch.fnmatch(str(file.relative_to(root / repo_id)), pattern) for pattern in delete_patterns):
                file.unlink()
        shutil.copytree(folder_path, root / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo, allow_patterns):
        copy = tmp_path / "cache" / repo
        shutil.rmtree(copy, ignore_errors=True)
        files = [path.relative_to(root / repo) for path in (root / repo).rglob("*") if path.is_file()]
        for file in files:
            if any(fnmatch.fnmatch(str(file), pattern) for pattern in allow_patterns):
                (copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / repo / file, copy / file)
        return str(copy)

    for fake in (model_info, create_repo, upload_folder):
        monkeypatch.setattr(huggingface_hub.HfApi, fake.__name__, fake)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return root


def test_policy_goes_to_the_hub_and_back(run, hub, capsys):
    assert main(["push", str(run.path), "user/name", "--private"]) == 0
    assert capsys.readouterr().out == "https://huggingface.co/user/name\n"
    assert (hub / "user/name/private").read_text() == "True"
    assert 'rlzoo.load_policy("hf:user/name")' in (hub / "user/name/README.md").read_text()
    (hub / "user/name/checkpoints/evil.py").write_text("raise SystemExit")
    assert np.array_equal(rlzoo.load_policy("hf:user/name")(OBSERVATIONS), rlzoo.load_policy(run)(OBSERVATIONS))
    assert rlzoo.evaluate("hf:user/name", 3).returns.tolist() == rlzoo.evaluate(run, 3).returns.tolist()
    assert not list((hub.parent / "cache" / "user" / "name").rglob("*.py"))


def test_second_push_takes_the_place_of_the_first(run, hub):
    rlzoo.push(run, "user/name")
    rlzoo.push(run, "user/name", checkpoint=run.steps()[0])
    assert rlzoo.Run.open("hf:user/name").steps() == run.steps()[:1]
    for name in ("evaluations.jsonl", "mine.txt"):
        (hub / "user/name" / name).touch()
    bare = rlzoo.Run(shutil.copytree(run.path, hub / "bare"))
    (bare.path / "evaluations.jsonl").unlink()
    rlzoo.push(bare, "user/name")
    assert not (hub / "user/name/evaluations.jsonl").exists()
    assert (hub / "user/name/mine.txt").exists()


def test_only_the_files_of_a_run_are_downloaded(run, hub):
    rlzoo.push(run, "user/name")
    (hub / "user/name/evil.py").write_text("1/0")
    downloaded = rlzoo.Run.open("hf:user/name").path
    assert {path.name for path in downloaded.iterdir()} == {
        "config.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints"
    }  # fmt: skip


def test_policy_that_is_not_on_the_hub(hub):
    with pytest.raises(RunError, match=r"^the Hugging Face hub has no policy user/other; .* hf auth login$"):
        rlzoo.load_policy("hf:user/other")


@pytest.mark.parametrize(
    ("setting", "x"),
    [
        ("env", "subprocess:getoutput"),
        ("env", "other:CartPole-v1"),
        ("wrappers", ["a.b:C(1)"]),
        ("env_kwargs", {"x": [{"y": "m:f"}]}),
        ("learning_rate", "linear:3e-4:x"),
    ],
)
def test_run_on_the_hub_names_no_code(setting, x, run, hub):
    rlzoo.push(run, "user/name")
    config = hub / "user/name/config.json"
    record = json.loads(config.read_text())
    config.write_text(json.dumps(record | {"learning_rate": "linear:3e-4:0"}))
    assert rlzoo.Run.open("hf:user/name").record["learning_rate"] == "linear:3e-4:0"
    config.write_text(json.dumps(record | {setting: x}))
    with pytest.raises(RunError, match=rf"^hf:user/name: {setting}=.* names code, which is not run from the hub"):
        rlzoo.evaluate("hf:user/name", 1)


def test_run_on_the_hub_cannot_be_resumed(run, hub):
    rlzoo.push(run, "user/name")
    with pytest.raises(RunError, match=r"^hf:user/name is on the Hugging Face hub: it can be evaluated"):
        rlzoo.resume("hf:user/name", 10_000)


@pytest.mark.parametrize("name", ["a b", "user/name/more", ""])
def test_name_that_the_hub_does_not_take(name):
    pytest.importorskip("huggingface_hub")
    with pytest.raises(RunError, match=r"^not a name on the Hugging Face hub, such as user/name: "):
        rlzoo.load_policy(f"hf:{name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["push", "RUN", "user/name"], ["export", "hf:user/name"], ["eval", "hf:user/name"]],
    ids=lambda arguments: arguments[0],
)
def test_hub_without_a_network_says_so(run, workplace, arguments):
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(workplace)}  # nobody listens there
    command = [sys.executable, "-m", "rlzoo", *(str(run.path) if a == "RUN" else a for a in arguments)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert result.returncode == 2
    assert re.fullmatch(r"rlzoo: the Hugging Face hub cannot be reached: .*\n", result.stderr)
