"""Files that are none, or far too large, in every place where a file is read: one line at once, and no hang."""

import os
import shutil

import pytest
import short_runs
import tiny

import rlzoo
from rlzoo.benchmark.job import load_peer
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.suite import load_suite
from rlzoo.cli import main
from rlzoo.cli.common import Threads, is_run, threads_for
from rlzoo.core.system.errors import ConfigError, RunError
from rlzoo.lm.finetune.data import read_pairs, read_texts
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.hugging_face import license_of
from rlzoo.lm.model.saving import check_output
from rlzoo.lm.reward.scores import load_score
from rlzoo.runs.configuration.presets import read_preset
from rlzoo.runs.diagnose import diagnose
from rlzoo.runs.logs.sinks import continue_tracker
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume

pytestmark = pytest.mark.timeout(120)  # a hang fails

HUGE = 200 * 2**30


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(HUGE)


KINDS = pytest.mark.parametrize("kind", [pipe, device, huge])


@pytest.fixture(scope="module")
def good_run(tmp_path_factory):
    return short_runs.quick_run(tmp_path_factory.mktemp("good") / "run")


@pytest.fixture
def run(good_run, tmp_path):
    shutil.copytree(good_run.path, tmp_path / "run")
    return Run(tmp_path / "run")


def put(kind, path):
    path.unlink(missing_ok=True)
    kind(path)
    return path


@KINDS
def test_configuration_of_a_run(kind, run, capsys):
    path = put(kind, run.path / "config.json")
    assert threads_for(Threads(), str(run.path)).count in (None, int(os.environ.get("OMP_NUM_THREADS", 0)))
    assert not is_run(str(run.path))
    for command in ("resume", "eval", "play", "report", "diagnose"):
        assert main([command, str(run.path)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert str(run.path) in error
    if kind is huge:
        with pytest.raises(RunError, match=r"config.json cannot be read: .*it has 214,748,364,800 bytes; at most"):
            Run.open(run).read_config()
    assert path.exists()


@KINDS
@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "state.json", "manifest.json"])
def test_checkpoint(kind, name, run):
    put(kind, run.checkpoints / str(run.steps()[-1]) / name)
    with pytest.raises(RunError, match=r"cannot read checkpoint .*: it (is not a regular file|has .* bytes)"):
        rlzoo.evaluate(run)


@KINDS
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_logs(kind, name, run):
    put(kind, run.path / name)
    for use in (diagnose, lambda run: resume(run, 800)):
        with pytest.raises(RunError, match=f"{name} cannot be read: it (is not a regular file|has .* bytes)"):
            use(run)


@KINDS
def test_small_files_of_a_run(kind, run):
    put(kind, run.checkpoints / "best.json")
    put(kind, run.path / "tracker.json")
    assert run.best_step() is None
    assert continue_tracker(run.path, {}) == []


@KINDS
def test_files_that_a_user_names(kind, tmp_path):
    for name in ("x.toml", "x.jsonl", "x.txt", "x.parquet", "x.json", "x.py"):
        put(kind, tmp_path / name)
    bad = "cannot be read: it (is not a regular file|has .* bytes)"
    with pytest.raises(ConfigError, match=f"x.toml {bad}"):
        read_preset(tmp_path / "x.toml", "trpo", "CartPole-v1")
    for name in ("x.jsonl", "x.txt", "x.parquet"):
        with pytest.raises(ConfigError, match=f"{name} {bad}"):
            read_texts(tmp_path / name)
    with pytest.raises(ConfigError, match=f"x.json {bad}"):
        pretrained.new_causal_lm(tmp_path / "x.json")
    with pytest.raises(ConfigError, match=f"x.py {bad}" if kind is huge else "no file"):
        load_score(f"{tmp_path / 'x.py'}:score")


def test_suite_and_its_results(tmp_path):
    path = put(huge, tmp_path / "suite.yaml")
    with pytest.raises(ConfigError, match=r"suite.yaml cannot be read: it has .* bytes"):
        load_suite(path)
    with pytest.raises(ConfigError, match=r"cannot be read: it has .* bytes"):
        load_peer(f"{put(huge, tmp_path / 'peer.py')}:Peer")
    put(pipe, tmp_path / "suite.json")
    with pytest.raises(RunError, match=r"not a regular file"):
        Results.read(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save_lm(tmp_path_factory.mktemp("lm") / "model")


@KINDS
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_saved_model(kind, name, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    put(kind, folder / name)
    bad = f"{name}: it (is not a regular file|has .* bytes)|there is no {name}|holds no (model|weights)"
    for load in (pretrained.load_causal_lm, pretrained.load_tokenizer):
        with pytest.raises(ConfigError, match=bad):
            load(folder)
    with pytest.raises(ConfigError, match=r"holds (a model|something other)"):
        check_output(folder)


@KINDS
def test_card_of_a_model(kind, tmp_path):
    put(kind, tmp_path / "README.md")
    assert license_of(str(tmp_path)) is None


def test_shards_outside_of_the_model(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    put(pipe, tmp_path / "pipe.safetensors")
    index = '{"metadata": {}, "weight_map": {"lm_head.weight": "../pipe.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ConfigError, match=r"model.safetensors.index.json names .*pipe.safetensors"):
        pretrained.load_causal_lm(folder)


def test_a_file_in_the_directory_of_a_dataset(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    put(pipe, folder / "train.jsonl")
    with pytest.raises(ConfigError, match=r"holds no dataset: .*not a regular file"):
        read_pairs(folder)


def test_a_line_without_end(tmp_path):
    with (tmp_path / "x.txt").open("wb") as file:
        file.truncate(2**25)
    with pytest.raises(ConfigError, match="line 1: longer than 16,777,216 bytes"):
        read_texts(tmp_path / "x.txt")


def test_a_run_with_a_bad_log_is_not_said_to_resume(run, capsys):
    put(pipe, run.path / "metrics.jsonl")
    assert main(["resume", str(run.path), "--total-steps", "800", "--json"]) == 2
    assert capsys.readouterr().err == f"rlzoo: {run.path}/metrics.jsonl cannot be read: it is not a regular file\n"
