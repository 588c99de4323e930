"""The first hours of three strangers: their programs run, with fewer steps than on their pages to be quick."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOURS = ROOT / "docs/first-hours"
PROGRAMS = ["researcher", "researcher_sb3", "student", "student_sb3", "engineer", "engineer_trl", "hooks", "hooks_sb3"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_on_a_page(name):
    pages = [path.read_text() for path in (ROOT / "docs").glob("from-*.md")]
    assert any(f'--8<-- "docs/first-hours/{name}.py"' in page and f"](first-hours/{name}.py)" in page for page in pages)


@pytest.fixture
def workplace(tmp_path):
    """A folder with a small language model that has the name of a large one."""
    from rlzoo.lm.finetune import sft
    from rlzoo.lm.model import pretrained, saving

    tokenizer = sft.train_tokenizer(["The lid of our kettle is superb. At home, my lamp is a joy."], 300)
    shape = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64}
    saving.save(pretrained.new_causal_lm(shape, len(tokenizer)), tokenizer, tmp_path / "gpt2")
    return tmp_path


def run(name, folder, **changes):
    """What the program prints, after changes to its text."""
    program = (HOURS / f"{name}.py").read_text()
    for old, new in changes.items():
        assert old in program
        program = program.replace(old, new)
    (folder / "program.py").write_text(program)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_researcher(tmp_path):
    output = run("researcher", tmp_path, **{"20_000": "6_000", "range(3)": "range(1)"})
    scores = {name: float(score) for name, score in re.findall(r"^(ppo-clip|trpo): (\d+) ±", output, re.MULTILINE)}
    assert set(scores) == {"ppo-clip", "trpo"}
    assert scores["trpo"] > 80
    assert re.search(r"^one episode: \d+$", output, re.MULTILINE)
    assert (tmp_path / "curves.png").stat().st_size > 5000


@pytest.mark.slow
def test_student(tmp_path):
    output = run("student", tmp_path, **{"20_000": "6_000", "range(3)": "range(2)"})
    scores = {name: float(score) for name, score in re.findall(r"^(.+): (\d+) \[\d+, \d+\]$", output, re.MULTILINE)}
    assert scores["TRPO"] > scores["REINFORCE"] > scores["REINFORCE, smaller steps"]
    assert "def update(self" in output
    assert (tmp_path / "curves.png").stat().st_size > 5000


@pytest.mark.slow
def test_engineer(workplace):
    output = run("engineer", workplace)
    assert output.count("The lid of our kettle") == 2
    for name in ("rloo", "grpo"):
        assert (workplace / f"runs/{name}/actor/config.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hooks", "hooks_sb3"])
def test_hooks(name, tmp_path):
    if name == "hooks_sb3":
        pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 comes with the extra peers")
    output = run(name, tmp_path, **{"20_000": "6_000"})
    assert re.search(r"^the shortest of \d+ episodes: [5-9] steps$", output, re.MULTILINE)
    assert re.search(r"^step \d+: [\d.]+$", output, re.MULTILINE)
    assert re.search(r"^\{'stage': 1, 'info_distance': \S+\}$", output, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seeds"), [("researcher_sb3", 1), ("student_sb3", 2)])
def test_the_others_run_too(name, seeds, tmp_path):
    pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 comes with the extra peers")
    assert "trpo:" in run(name, tmp_path, **{"20_000": "3_000", "range(3)": f"range({seeds})"}).lower()
