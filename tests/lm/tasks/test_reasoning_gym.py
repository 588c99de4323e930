"""reasoning-gym as prompts and a verifier: with a stand-in for the package, and with itself if it is installed."""

import json
import os
import sys
import textwrap

import pytest

from rlzoo.core.errors import ConfigError
from rlzoo.lm.finetune.data import read_prompts
from rlzoo.lm.reward.scores import call_score, load_score
from rlzoo.lm.tasks import reasoning_gym as adapter

STAND_IN = """
    import time
    from . import factory

    class Sums:
        def __init__(self, size, seed, largest=9):
            assert largest > 0, "largest must be positive"
            self.size, self.seed, self.largest = size, seed, largest

        def __getitem__(self, i):
            a, b = i % self.largest, i
            return {"question": f"{a}+{b}=", "answer": str(a + b), "metadata": {"pair": (a, b)}}

    def create_dataset(name, size, seed, **options):
        return Sums(size, seed, **options)

    def get_score_answer_fn(name):
        def score(answer, entry):
            print("noise on the standard output")
            if answer == "hang":
                time.sleep(1000)
            if answer == "die":
                import os
                os._exit(1)
            assert isinstance(entry["metadata"]["pair"], tuple)
            return 1.0 if int(answer) == sum(entry["metadata"]["pair"]) else 0.01
        return score
"""


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A `reasoning_gym` with one dataset, here and in child processes."""
    folder = tmp_path / "packages" / "reasoning_gym"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(textwrap.dedent(STAND_IN))
    (folder / "factory.py").write_text('DATASETS = {"sums": None}\n')
    forget()
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), *sys.path]))
    yield
    for cached in (adapter._entries, adapter._verifier):
        if cached is adapter._verifier:
            adapter._verifier().close()
        cached.cache_clear()
    forget()


@pytest.mark.usefixtures("package")
def test_files_of_prompts_and_their_verifier(tmp_path, capsys):
    assert (
        adapter.main([str(tmp_path / "data"), "sums", "--size", "6", "--held-out", "2", "--option", "largest=5"]) == 0
    )
    assert "prompts.jsonl: 4 lines" in capsys.readouterr().out  # two questions are held out
    prompts = read_prompts(tmp_path / "data" / "prompts.jsonl")
    held_out = read_prompts(tmp_path / "data" / "held_out_prompts.jsonl")
    assert not {*prompts} & {*held_out}
    score = load_score("rlzoo.lm.tasks.reasoning_gym:verify")
    answers = [x.columns["answer"] for x in prompts]
    assert call_score(score, "verify", prompts, answers).tolist() == [1.0] * 4
    assert call_score(score, "verify", prompts, ["100"] * 4).tolist() == pytest.approx([0.01] * 4)


@pytest.mark.usefixtures("package")
def test_hostile_answers_score_0_and_the_next_one_is_checked(monkeypatch):
    prompts = adapter.prompts("sums", 2, seed=0)
    sources = [x.columns["source"] for x in prompts]
    right = prompts[1].columns["answer"]
    assert adapter.verify(prompts, ["no number", right], sources) == [0, 1]
    monkeypatch.setattr(adapter, "SECONDS", 0.5)
    assert adapter.verify(prompts, ["hang", "die"], sources) == [0, 0]
    monkeypatch.setattr(adapter, "SECONDS", 60.0)
    assert adapter.verify(prompts, ["die", right], sources) == [0, 1]


@pytest.mark.usefixtures("package")
def test_wrong_use(tmp_path, capsys):
    for arguments, message in [
        (["suns"], "no dataset of reasoning-gym 'suns'; did you mean 'sums'?"),
        (["sums", "--option", "largest=0"], "reasoning-gym's sums: largest must be positive"),
        (["sums", "--option", "largest"], "--option must be NAME=VALUE, such as max_terms=3; got 'largest'"),
    ]:
        assert adapter.main([str(tmp_path / "data"), *arguments]) == 2
        assert capsys.readouterr().err == f"rlzoo: {message}\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"prompts.jsonl exists"):
        adapter.write(tmp_path / "data", "sums", 3, 1, 0)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"need the packages of rlzoo\[reasoning-gym\]"):
        adapter.prompts("sums", 2, seed=0)


def test_the_package_itself():
    pytest.importorskip("reasoning_gym")
    prompts = adapter.prompts("chain_sum", 3, seed=0, max_terms=2)
    sources = [x.columns["source"] for x in prompts]
    assert adapter.verify(prompts, [x.columns["answer"] for x in prompts], sources) == [1, 1, 1]
    assert adapter.verify(prompts, ["", "x", "("], sources) == [0, 0, 0]
    assert json.dumps(sources)
