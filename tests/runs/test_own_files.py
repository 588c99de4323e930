"""A run knows its own files: the reference, prompts and checkpoints of another run, or changed ones, are refused."""

import json
import shutil

import pytest
import short_language_runs
import short_runs
import tiny

from rlzoo.core.system.errors import ConfigError, RunError
from rlzoo.core.system.files import seal
from rlzoo.runs.evaluate import evaluate
from rlzoo.runs.train import resume, train


@pytest.fixture(scope="module")
def language_run(tmp_path_factory):
    """A run whose prompts were an object."""
    folder = tmp_path_factory.mktemp("data")
    short_language_runs.save_data(folder)
    changes = {"prompts": ["ab", "hello", "xyz", "Q"], "ptx": None, "total_steps": 30, **short_language_runs.PPO}
    settings = short_language_runs.settings(folder, "ppo-clip", **changes)
    settings.pop("ptx_rows")
    return train(out=folder / "run", **settings)


@pytest.fixture
def copy(language_run, tmp_path):
    return shutil.copytree(language_run.path, tmp_path / "run")


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(run, message, error=RunError):
    for use in (lambda: evaluate(run, 2), lambda: resume(run, 1000)):
        with pytest.raises(error, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_copy_of_a_run_is_as_good_as_the_run(copy, language_run):
    assert evaluate(copy, 4).returns.tolist() == evaluate(language_run, 4).returns.tolist()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_bit_in_the_reference_is_refused(copy, name):
    data = bytearray((copy / "start" / name).read_bytes())
    data[-5] ^= 1
    (copy / "start" / name).write_bytes(data)
    refused(copy, rf"start/{name} is damaged, or not the file that was saved there", ConfigError)


def test_a_reference_without_a_file_is_refused(copy):
    (copy / "start" / "tokenizer.json").unlink()
    refused(copy, r"start/tokenizer\.json is damaged, or not the file", ConfigError)


def test_the_reference_of_another_run_is_refused(copy):
    shutil.rmtree(copy / "start")
    seal(tiny.save_lm(copy / "start", seed=1))
    refused(copy, "it is that of another run: start/manifest.json was")


def test_other_prompts_are_refused(copy):
    (copy / "prompts.jsonl").write_text('{"prompt": "other"}\n')
    refused(copy, "it is that of another run: prompts.jsonl was")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run, other = (short_runs.quick_run(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    shutil.rmtree(run.checkpoints)
    shutil.copytree(other.checkpoints, run.checkpoints)
    refused(run, "another run: seed was 1 there, and is 0 here")


def test_a_checkpoint_of_another_step_is_refused(tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    before, step = run.steps()[-2:]
    shutil.copytree(run.checkpoints / str(before), run.checkpoints / str(step), dirs_exist_ok=True)
    refused(run, rf"cannot read checkpoint \S+/{step}: it is that of step {before}; the one before it")


def test_a_changed_configuration_is_refused(tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    edit(run.path / "config.json", gamma=0.5)
    refused(run, r"it is that of another run: gamma was 0\.99 there, and is 0\.5 here$")  # as the checkpoint before it


def test_length_and_place_of_training_may_change(tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    edit(run.path / "config.json", total_steps=1200, fast=False)
    assert len(evaluate(run, 2).returns) == 2
    assert resume(run, 1300).steps()[-1] >= 1300
