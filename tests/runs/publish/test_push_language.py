"""A language run: its adapter for PEFT, and its model on the Hub, with a card that says where it is from."""

import dataclasses
import html
import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import short_language_runs
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlzoo
from rlzoo.cli import main
from rlzoo.lm.model.language_model import merge_adapter
from rlzoo.runs.evaluate import load_model, load_task
from rlzoo.runs.publish import card as cards


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with an adapter, from a model whose card names a licence."""
    folder = tmp_path_factory.mktemp("data")
    short_language_runs.save_data(folder)
    (folder / "model/README.md").write_text("---\nlicense: mit\n---\n")
    changes = {**short_language_runs.PPO, "lora_rank": 2, "total_steps": 60, "learning_rate": 0.05}
    return rlzoo.train(out=folder / "run", **short_language_runs.settings(folder, "ppo-clip", **changes))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, for PEFT
def test_adapter_on_the_initial_model_is_the_actor(run):
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(run.path / "start")
    start = {name: x.clone() for name, x in base.state_dict().items()}
    adapted = peft.PeftModel.from_pretrained(base, run.path / "adapter").merge_and_unload()
    actor = AutoModelForCausalLM.from_pretrained(run.path / "actor").state_dict()
    for name, x in adapted.state_dict().items():
        torch.testing.assert_close(x, actor[name], rtol=0, atol=1e-6)
    assert any(not torch.equal(x, start[name]) for name, x in actor.items())
    config = json.loads((run.path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str((run.path / "start").resolve())
    assert sorted(path.name for path in (run.path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def card(folder):
    _, metadata, body = Path(folder, "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(metadata), html.unescape(body)


def test_folder_holds_the_model_of_the_checkpoint(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["push", str(run.path), "./shared", "--checkpoint", "best"]) == 0
    assert capsys.readouterr().out == "shared\n"
    model = merge_adapter(load_model(run, "best").actor)
    ids = torch.arange(5)[None]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained("shared")(ids).logits
        torch.testing.assert_close(theirs, model(ids).logits, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained("shared")("ab")["input_ids"] == [0, 1]


def test_card(run, tmp_path):
    rlzoo.push(run, tmp_path / "shared")
    metadata, body = card(tmp_path / "shared")
    assert metadata["license"] == "mit"
    assert metadata["library_name"] == "transformers"
    assert {"Prompts", "ppo-clip", "rlzoo"} <= {*metadata["tags"]}
    assert "base_model" not in metadata
    first, last = run.evaluations()[0], run.evaluations()[-1]
    for kind, e in (("start, stochastic", first), ("deterministic", last)):
        half = 1.96 * e["std_return"] / e["episodes"] ** 0.5
        interval = f"{e['mean_return'] - half:,.3f} to {e['mean_return'] + half:,.3f}"
        kl = f"{e['kl_reference']:.2f}"
        assert f"| {kind} | {e['mean_return']:,.3f} | {interval} | {kl} | {e['episodes']} |\n" in body
    assert f"| {last['samples'][0]['prompt']} | " in body
    assert "| licence of the initial model | mit |\n" in body
    assert "| reward | " in body
    assert str(run.path.parent) not in body


def test_model_of_a_directory_that_is_elsewhere_now_is_not_one_on_the_hub(run, tmp_path, monkeypatch):
    """Its relative path looks like a Hub name. A model that was loaded from the Hub is in the cache."""
    task = load_task(run)
    task.settings = dataclasses.replace(task.settings, model="models/small")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, timeout: None)
    assert task.save_model(tmp_path / "model")["base"] == ""
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: "cache/config.json")
    assert task.save_model(tmp_path / "model")["base"] == "models/small"


def test_exact_evaluation_has_no_interval():
    evaluation = {"mean_return": 0.5, "std_return": 0.25, "episodes": 20, "kl_reference": 1.0, "exact": True}
    assert cards._scores(evaluation) == ["0.500", "exact", "1.00", "20"]


def test_model_goes_to_the_hub(run, tmp_path, monkeypatch, capsys):
    def create_repo(api, repo, private, exist_ok):
        assert (private, exist_ok) == (False, True)
        return f"https://huggingface.co/{repo}"

    def upload_folder(api, repo_id, folder_path, **_):
        shutil.copytree(folder_path, tmp_path / repo_id)

    for fake in (create_repo, upload_folder):
        monkeypatch.setattr(huggingface_hub.HfApi, fake.__name__, fake)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, timeout: None)
    assert main(["push", str(run.path), "user/name"]) == 0
    assert capsys.readouterr().out == "https://huggingface.co/user/name\n"
    names = {path.name for path in (tmp_path / "user/name").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert 'AutoModelForCausalLM.from_pretrained("user/name")' in card(tmp_path / "user/name")[1]
