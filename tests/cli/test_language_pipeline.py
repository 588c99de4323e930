"""The pipeline of the README at a small scale: texts, SFT, reward model, PPO, and a model that stops by itself."""

import json
import re
import shlex
from pathlib import Path

import pytest
from transformers import pipeline, set_seed

import rlzoo
from rlzoo.cli import main
from rlzoo.lm.tasks import reviews

README = Path(rlzoo.__file__).parents[1] / "README.md"
SMALLER = {
    "sft": ["--epochs", "1"],
    "reward-model": [],
    "train": ["--out", "run", "--max-new-tokens", "48", "--eval-episodes", "8"],
}


def commands():
    """The arguments of the commands of the pipeline in the README."""
    (block,) = re.findall(r"^(echo '\{\"model_type\".*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    return lines[0], [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("rlzoo ")]


@pytest.mark.slow
def test_pipeline_makes_a_model_that_stops_by_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    echo, run = commands()
    Path("small.json").write_text(json.dumps(json.loads(shlex.split(echo)[1])))
    reviews.write("data")
    for name, lines in (("texts.txt", 3000), ("pairs.jsonl", 300)):
        path = Path("data", name)
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    assert [arguments[0] for arguments in run] == ["sft", "reward-model", "train"]
    for arguments in run:
        steps = [{"60_000": "1_000"}.get(x, x) for x in arguments]
        assert main([*steps, *SMALLER[arguments[0]], "--threads", "1"]) == 0
    for folder in ("models/sft", "run/start", "run/actor"):
        generate = pipeline("text-generation", model=folder)
        end = generate.tokenizer.eos_token_id
        for sampled in (False, True):
            set_seed(0)
            made = generate(["The lid of our kettle"] * 4, max_new_tokens=60, do_sample=sampled, return_tensors=True)
            rows = [x["generated_token_ids"] for (x,) in made]
            assert all(end in row and len(row) < 60 for row in rows), folder
