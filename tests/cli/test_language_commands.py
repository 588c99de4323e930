"""The commands on language models: train, eval, play and resume on prompts of one's own, sft, reward-model."""

import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time

import pytest
import tiny
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError, Interrupted
from rlzoo.lm.model.pretrained import load_causal_lm
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.lm.tasks.conversation import Speaker
from rlzoo.lm.tasks.samples import Sample, describe_samples
from rlzoo.runs.evaluate import load_task
from rlzoo.runs.run import Run
from rlzoo.runs.signals import interrupt_once

PROMPTS = ["Say a", "Tell me", "Go on"]
TASK = {"model": "model", "prompts": "prompts.txt", "reward": "score.py:length"}
SMALL = {
    "responses_per_batch": 6,
    "responses_per_prompt": 2,
    "max_new_tokens": 4,
    "minibatch_responses": 3,
    "epochs": 1,
    "total_steps": 60,
}
SMALL |= {"final_eval_episodes": 5}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The current directory, with a model, prompts, scores, texts and pairs."""
    folder = tmp_path_factory.mktemp("lm_cli")
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    (folder / "score.py").write_text(
        "def length(prompts, responses):\n    return [len(response) / 4 for response in responses]\n\n\n"
        "def broken(prompts, responses):\n    raise ValueError('no idea')\n"
    )
    (folder / "texts.txt").write_text("".join(f"Hello {c}.\n" for c in "abcdefghijkl"))
    pairs = [{"prompt": f"It is {c}", "chosen": " good", "rejected": " bad"} for c in "abcdefghijkl"]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def options(**settings):
    return [text for name, x in settings.items() for text in (f"--{name.replace('_', '-')}", str(x))]


def command(*arguments, **settings):
    return main([*arguments, *options(**settings), "--threads", "1"])


def train(*switches, **settings):
    return command("train", "ppo", "Prompts", *switches, **{**TASK, **SMALL, **settings})


@pytest.fixture(scope="module")
def run(folder):
    assert train("--quiet", out="run", beta=0.1) == 0
    return Run("run")


def out_of(capsys):
    captured = capsys.readouterr()
    assert "rlzoo:" not in captured.err
    return captured.out


def complaint(capsys):
    """The one line of a command that failed."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("rlzoo: ")]
    return line.removeprefix("rlzoo: ")


# Runs


def test_run_keeps_settings_start_and_actor(run):
    config = run.read_config()
    assert (config.env, config.task.model, config.task.beta, config.task.max_new_tokens) == ("Prompts", "model", 0.1, 4)
    assert run.finished
    assert run.objects == {}
    for name in ("start", "actor"):
        assert load_causal_lm(run.path / name).config.n_embd == 32


def test_what_tensorboard_shows_of_a_run(run):
    board = EventAccumulator(str(run.path))
    board.Reload()
    tags = board.Tags()
    env = {"env/score", "env/kl_reference", "env/beta"}
    assert env | {"episode/return", "eval/kl_reference", "eval/ended", "train/kl_k3"} <= set(tags["scalars"])
    assert {"config", "eval/samples", "eval/samples_deterministic"} <= set(tags["tensors"])
    table = board.Tensors("eval/samples")[0].tensor_proto.string_val[0].decode()
    assert table.startswith("| prompt | response | score | kl | length | ended |\n| --- |")
    assert PROMPTS[0] in table


def test_python_takes_the_settings_too(run, capsys):
    same = rlzoo.train("ppo", "Prompts", beta=0.1, out="same", **TASK, **SMALL)
    assert same.read_config() == run.read_config()
    assert same.metrics()[-1]["score"] == run.metrics()[-1]["score"]
    assert capsys.readouterr().out == ""


def test_eval(run, capsys):
    assert command("eval", "run", "--json", episodes=7, seed=1) == 0
    answer = json.loads(out_of(capsys))
    assert answer["episodes"] == 7
    assert answer["kl_reference"] > 0
    assert [sample["prompt"] for sample in answer["samples"]] == [*PROMPTS, PROMPTS[0]]
    assert command("eval", "run", episodes=7, seed=1) == 0
    (line,) = out_of(capsys).splitlines()
    kl = f"{answer['kl_reference']:.3g}"
    assert re.fullmatch(rf"step \d+: mean score [\d.]+ ± [\d.]+ over 7 responses, KL to the reference {kl}", line)


def test_resume(run, capsys):
    assert command("train", "ppo", "Prompts", "--quiet", **TASK, **SMALL, out="further") == 0
    step = Run("further").steps()[-1]
    capsys.readouterr()
    assert command("resume", "further", total_steps=step + 30) == 0
    said = out_of(capsys)
    assert f"\nresuming further at step {step}\n" in said
    assert Run("further").steps()[-1] >= step + 30


def test_recipe(run, monkeypatch, capsys):
    recipe = {"estimator": "leave-one-out", "ent_coef": 0.01, "beta": 0.2}
    monkeypatch.setattr("rlzoo.runs.configuration.presets.recipes", lambda: {"grouped": recipe})
    assert train(out="grouped", preset="grouped", beta=0.3) == 0
    said = out_of(capsys)
    assert "\npreset grouped: estimator=leave-one-out, ent_coef=0.01\ntraining in grouped\n" in said
    config = Run("grouped").read_config()
    assert (config.algorithm.ent_coef, config.task.beta) == (0.01, 0.3)
    assert config.to_dict()["estimator"] == "leave-one-out"
    assert train(out="gruped", preset="gruped") == 2
    assert complaint(capsys) == "no preset 'gruped'; did you mean 'grouped'? (a file ends in .toml)"
    assert command("train", "ppo", "CartPole-v1", preset="grouped", out="none") == 2
    assert complaint(capsys).endswith("sets beta, which ppo-clip on CartPole-v1 does not have")


def test_settings_are_on_the_help_page(capsys):
    assert main(["train", "ppo", "Prompts", "--help-all"]) == 0
    page = capsys.readouterr().out
    assert "--max-new-tokens INT" in page
    assert "--critic {head,actor,reward-model}" in page
    assert "--num-steps" not in page
    assert main(["train", "ppo-clip", "RandomWalks", "--help"]) == 0
    assert re.search(r"--stop-tokens .*\(default: a\)", " ".join(capsys.readouterr().out.split()))


def test_score_that_fails_breaks_the_run_off(capsys):
    assert train("--quiet", out="broken", reward="score.py:broken") == 1
    assert re.match(
        r"step 0: reward score.py:broken: ValueError: no idea \(.*score.py:6\); there is", complaint(capsys)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": "nowhere.txt"}, "no such file: nowhere.txt"),
        ({"reward": "score.py:lenght"}, "reward 'score.py:lenght': no function 'lenght'; did you mean 'length'?"),
        ({"max_new_tokens": 32}, "max_new_tokens must leave room for a prompt in the model's context of 32, got 32"),
        ({"critic": "reward-model"}, "critic: to start from the reward model, reward must be the directory of one"),
    ],
)
def test_wrong_settings(settings, message, folder, capsys):
    assert train(out="wrong", **settings) == 2
    assert complaint(capsys) == message
    assert not (folder / "wrong").exists()


# Play


def test_play_prints_responses(run, capsys):
    assert command("play", "run", episodes=4, seed=2) == 0
    text = out_of(capsys)
    assert command("play", "run", "--json", episodes=4, seed=2) == 0
    answer = json.loads(out_of(capsys))
    samples = rlzoo.play(run, 4, seed=2)
    shown = describe_samples(samples)
    assert text == shown.transcript + "\n"
    assert answer == json.loads(json.dumps({"run": "run", "step": run.steps()[-1], "video": None, **shown.summary}))
    assert [x.prompt for x in samples] == [*PROMPTS, PROMPTS[0]]
    assert all(x.score == len(x.response) / 4 and x.kl > 0 for x in samples)
    assert rlzoo.play(run, 4, seed=3) != samples


def test_play_shows_modes_and_checkpoints(run, capsys):
    first, again = (rlzoo.play(run, 3, seed=seed, deterministic=True) for seed in (0, 1))
    assert [x.response for x in first] == [x.response for x in again]
    step = run.steps()[0]
    assert command("play", "run", "--json", "--deterministic", checkpoint=step) == 0
    answer = json.loads(out_of(capsys))
    assert answer["step"] == step
    assert answer["mean_kl"] != describe_samples(first[:1]).summary["mean_kl"]


def test_there_is_no_video_of_a_language_model(run, capsys):
    message = "video: Prompts cannot be recorded; play prints the responses"
    assert command("play", "run", video="x.gif") == 2
    assert complaint(capsys) == message
    with pytest.raises(ConfigError, match=message):
        rlzoo.play(run, video="x.gif")


def test_transcript_is_readable_and_commands_no_terminal():
    samples = [
        Sample("Say\nit", "a\x1b[2Jb\rc\u200bé", 0.25, 1.5, 6, True),
        Sample("Tell", "", 0.5, 0.0, 8, False),
    ]
    shown = describe_samples(samples)
    assert shown.transcript.splitlines() == [
        "response 1: score 0.25, KL 1.5 nats, 6 tokens",
        "  prompt    Say",
        "            it",
        r"  response  a\x1b[2Jb\rc\u200bé",
        "",
        "response 2: score 0.5, KL 0 nats, 8 tokens, cut at the limit",
        "  prompt    Tell",
        "  response  ",
        "",
        "mean score 0.375, mean KL 0.75 nats over 2 responses",
    ]
    assert shown.summary["mean_score"] == 0.375
    assert shown.summary["responses"][1] == samples[1]._asdict()


# Supervised fine-tuning and reward models


@pytest.mark.parametrize(
    ("name", "data", "first"),
    [
        ("sft", "texts.txt", "12 texts; GPT2LMHeadModel of"),
        ("reward-model", "pairs.jsonl", "12 pairs; GPT2ForSequenceClassification of"),
    ],
)
def test_fit_reports_its_progress(name, data, first, folder, capsys):
    lines = [first, "using 1 thread (--threads)", "epoch 1/2: loss", "epoch 2/2: loss", "saved in"]
    arguments = [name, data, *options(model="model", out=f"{name}-out", epochs=2, learning_rate=1e-3)]
    assert command(*arguments) == 0
    said = out_of(capsys).splitlines()
    assert len(said) == len(lines)
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=True))
    assert command(*arguments) == 2
    assert complaint(capsys).startswith(f"{name}-out holds a model already; choose another folder, or replace it")
    assert command(*arguments, "--overwrite", "--quiet") == 0
    (line,) = out_of(capsys).splitlines()
    assert line.startswith("epoch 2/2: loss ")
    assert command(*arguments, "--overwrite", "--json") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["model"], answer["epoch"], answer["cut"]) == (f"{name}-out", 2, 0)
    assert f"loss {answer['loss']:.4g}" in line
    assert "saved in" in err


def test_fine_tuned_model_and_reward_model_make_a_run(folder):
    small = {"epochs": 1, "held_out": 0.25}
    assert command("sft", "texts.txt", "--quiet", model="model", out="tuned", **small) == 0
    assert command("reward-model", "pairs.jsonl", "--quiet", model="tuned", out="judge", centring=0.01, **small) == 0
    assert train("--quiet", model="tuned", reward="judge", critic="reward-model", out="rlhf") == 0
    (sample,) = rlzoo.play("rlhf")
    (score,) = RewardModel.load("judge")([sample.prompt], [sample.response])
    assert sample.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sft", "Missing from rlzoo sft: TEXTS A .txt file of lines"),
        ("sft texts.txt --model model", "Missing from rlzoo sft: --out STR Directory for the model"),
        ("reward-model pairs.jsonl", "Missing from rlzoo reward-model: --model STR Initial model"),
        ("sft nowhere.txt --model model --out x", "no such file: nowhere.txt"),
        ("sft texts.txt --model model --out pairs.jsonl", "pairs.jsonl is a file"),
        ("sft texts.txt --model model --out x --epocs 3", "no option '--epocs'; did you mean '--epochs'?"),
        ("sft texts.txt --model model --out x --epochs 0", "epochs must be at least 1, got 0"),
        ("sft texts.txt --model model --out x --device abacus", "device must be cpu, cuda, cuda:N or the like"),
        ("sft texts.txt --model model --out x --vocab-size 300", "vocab_size is for a configuration without a"),
        ("sft texts.txt pairs.jsonl --model model --out x", "unexpected argument 'pairs.jsonl'"),
        ("reward-model texts.txt --model model --out x", "texts.txt: pairs are read from a .jsonl file"),
        ("reward-model pairs.jsonl --model model --out x --margin 1", "no option '--margin'"),
        ("reward-model pairs.jsonl --model small.json --out x", "model small.json is a configuration without weights"),
    ],
)
def test_wrong_use_of_a_fit(arguments, message, folder, capsys):
    assert command(*arguments.split()) == 2
    assert complaint(capsys).startswith(message)
    assert not (folder / "x").exists()


@pytest.mark.parametrize(("name", "own"), [("sft", "--vocab-size"), ("reward-model", "--centring")])
def test_help_of_a_fit(name, own, capsys):
    assert main([name, "--help"]) == 0
    page = capsys.readouterr().out
    assert {"--model", "--out", "--epochs", "--held-out", "--json", "--threads", own} <= {*page.split()}
    assert len({"--vocab-size", "--centring"} & {*page.split()}) == 1
    assert all(len(line) <= 120 for line in page.splitlines())


# A task that brings everything along


@pytest.mark.slow
def test_random_walks_from_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path))
    settings = {"total_steps": 500, "responses_per_batch": 20, "minibatch_responses": 10, "epochs": 1, "out": "walks"}
    assert command("train", "ppo", "RandomWalks", "--no-preset", **settings) == 0
    said = out_of(capsys)
    assert said.startswith("RandomWalks: SFT on ")
    assert command("eval", "walks", "--json", episodes=4) == 0
    answer = json.loads(out_of(capsys))
    assert answer["exact"] is True
    assert 0.5 < answer["mean_return"] < 1


# Talking


def talk(monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


class Typed(io.StringIO):
    """A terminal on which lines are typed; an error is raised in the place of a line."""

    def __init__(self, *lines):
        super().__init__()
        self.lines = iter(lines)

    def isatty(self):
        return True

    def input(self, prompt):
        line = next(self.lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line


def test_each_line_of_the_input_is_answered(run, monkeypatch, capsys):
    talk(monkeypatch, "Say a", "", "/new", "Tell me", "/quit", "no more")
    assert command("chat", "run", "--greedy") == 0
    out, err = capsys.readouterr()
    samples = load_task("run").respond_to(["Say a", "Tell me"], 2, seed=0, deterministic=True).records
    assert out == "".join(f"{x.response}\n" for x in samples)
    assert err == "rlzoo: run has no chat template: each message is a text that it continues\n"


def test_input_that_is_no_text_is_named(run, monkeypatch, capsys):
    talk(monkeypatch, "caf\udce9")  # as Python reads a byte of Latin-1 in some locales
    assert command("chat", "run") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("rlzoo: standard input is not text: 'utf-8' codec can't")


def test_typed_bytes_that_are_no_text_do_not_end_the_chat(run, monkeypatch, capsys):
    terminal = Typed("caf\udce9", UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "unexpected end of data"), "Say a")
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", terminal.input)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert command("chat", "run", "--greedy") == 0
    out, err = capsys.readouterr()
    assert err.count("rlzoo: the message is not text: 'utf-8' codec can't ") == 2
    (sample,) = load_task("run").respond_to(["Say a"], 1, seed=0, deterministic=True).records
    assert out.splitlines()[1] == sample.response


def test_start_answers_beside_the_actor(run, monkeypatch, capsys):
    talk(monkeypatch, "Say a")
    assert command("chat", "run", "--greedy", beside="start", max_new_tokens=3) == 0
    first, second = capsys.readouterr().out.splitlines()
    talk(monkeypatch, "Say a")
    assert command("chat", "run/start", "--greedy", max_new_tokens=3) == 0
    assert first == f"start: {capsys.readouterr().out.strip()}"
    assert second.startswith("actor: ")


def test_run_that_has_not_ended_answers_with_its_checkpoint(run, monkeypatch, capsys, tmp_path):
    shutil.copytree("run", tmp_path / "begun", ignore=shutil.ignore_patterns("actor"))
    answers = []
    for name in ("run", tmp_path / "begun"):
        talk(monkeypatch, "Say a")
        assert command("chat", str(name), "--greedy") == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_run_that_goes_on_has_no_final_model_of_an_earlier_end(run, monkeypatch, capsys, tmp_path):
    """Chat answered with the weights of that end."""
    longer = shutil.copytree("run", tmp_path / "longer")
    hooks = rlzoo.Hooks(on_start=lambda trainer: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        rlzoo.resume(longer, 200, hooks=hooks)
    assert not (longer / "actor").exists()
    rlzoo.resume(longer)
    assert (longer / "actor").is_dir()


def test_chat_samples_as_the_run_did_unless_told_otherwise(run, monkeypatch, tmp_path):
    given, copy = [], shutil.copytree("run", tmp_path / "run")
    record = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(record | {"temperature": 0.7, "allowed_tokens": "legal:moves"}))

    def load(name, *how, allowed):
        given.append((*how, allowed))
        raise ConfigError("enough")

    monkeypatch.setattr(Speaker, "load", load)
    for arguments in (["model"], [str(copy)], [str(copy), "--temperature", "2", "--seed", "5"]):
        command("chat", *arguments)
    limit = "legal:moves"
    assert given == [(1.0, 256, False, 0, None), (0.7, 4, False, 0, limit), (2.0, 4, False, 5, limit)]


def test_every_ctrl_c_on_a_terminal_ends_an_answer(run, monkeypatch, capsys):
    """Not the first alone, though the program lets only one stop other commands."""
    terminal = Typed("Say a", "Say a", "Say a", "/quit")
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", terminal.input)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    interrupted = []

    def answer(speaker, text):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            interrupted.append(text)
            raise
        yield "not interrupted"

    monkeypatch.setattr(Speaker, "answer", answer)
    before, unraisable = signal.getsignal(signal.SIGINT), sys.unraisablehook
    try:
        interrupt_once()
        assert command("chat", "run") == 0
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = unraisable
    assert len(interrupted) == 3
    assert "not interrupted" not in capsys.readouterr().out


def test_keys_on_a_terminal(run, monkeypatch, capsys):
    terminal = Typed("Say a", "/new", "a" * 40, "Say a", KeyboardInterrupt())
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", terminal.input)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    answer, calls = Speaker.answer, itertools.count()

    def interrupted(speaker, text):
        for piece in answer(speaker, text):
            yield piece
            if next(calls) == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr(Speaker, "answer", interrupted)
    assert command("chat", "run", "--greedy") == 0
    out, err = capsys.readouterr()
    header, begun, full, whole, end = out.splitlines()
    assert header.startswith("run: ")
    assert whole.startswith(begun)
    assert len(whole) > len(begun) > 0
    assert full == end == ""
    assert "the message fills the model's context of 32 tokens: write a shorter one" in err


def test_seeds_are_of_any_size(run, monkeypatch, capsys):
    """PyTorch takes 64 bits."""
    assert command("eval", "run", episodes=3, seed=2**64) == 0
    assert command("play", "run", seed=2**70) == 0
    talk(monkeypatch, "Say a")
    assert command("chat", "run", seed=2**64) == 0
    pytest.importorskip("peft")
    assert train("--quiet", out="large-seed", lora_rank=2, seed=2**64) == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "--temperature", "0"], "temperature must be at least 1e-06, got 0.0; --greedy takes"),
        (["run", "--max-new-tokens", "0"], "max_new_tokens must be at least 1, got 0"),
        (["run", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["run", "--beside", "actor"], "--beside: expected none|start, got 'actor'"),
        (["model", "--beside", "start"], "--beside start is for runs; model is none"),
        (["absent"], "no such directory: absent"),
        (["texts.txt"], "texts.txt is a file"),
    ],
)
def test_wrong_use_of_chat(arguments, reason, run, capsys):
    assert command("chat", *arguments) == 2
    assert reason in complaint(capsys)


@pytest.mark.parametrize(("name", "value"), [("temperature", "x"), ("temperature", None), ("max_new_tokens", 1.5)])
def test_a_run_whose_settings_are_of_another_kind(name, value, run, tmp_path, capsys):
    path = shutil.copytree("run", tmp_path / "run") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    assert command("chat", str(path.parent)) == 2
    assert f"{name} must be at least 1" in complaint(capsys)


@pytest.mark.parametrize("name", ["eval", "play"])
def test_a_model_is_no_run(name, run, capsys):
    assert command(name, "model") == 2
    assert complaint(capsys) == "model is a language model and no run: talk to it with rlzoo chat model"


def test_chat_is_for_language_models(capsys, tmp_path):
    small = {"num_envs": 2, "num_steps": 8, "minibatch_size": 16, "total_steps": 16, "final_eval_episodes": 1}
    rlzoo.train("ppo", "CartPole-v1", out=tmp_path / "cp", preset=False, **small)
    assert command("chat", str(tmp_path / "cp")) == 2
    assert complaint(capsys) == "chat is for language models; CartPole-v1 has none"
    assert command("play", str(tmp_path / "cp"), prompt="Hello") == 2
    assert complaint(capsys) == "prompt is for language tasks; CartPole-v1 is none"


def test_play_responds_to_prompts(run, capsys):
    assert command("play", "run", "--deterministic", "--json", "--prompt", "Say a", "--prompt", "abc") == 0
    record = json.loads(out_of(capsys))
    assert [x["prompt"] for x in record["responses"]] == ["Say a", "abc"]
    assert [x["score"] for x in record["responses"]] == [len(x["response"]) / 4 for x in record["responses"]]
    assert command("play", "run", prompt="abc", episodes=3) == 0
    assert out_of(capsys).count("  prompt    abc") == 3
    for prompts in (["Say a", "abc", "b"], ("abc",)):
        assert [x.prompt for x in rlzoo.play(run, prompts=prompts)] == list(prompts)
    assert [x.prompt for x in rlzoo.play(run, prompts="abc")] == ["abc"]
    assert len(rlzoo.play(run, 1, prompts=["a", "b"])) == 1
    assert command("play", "run", prompt="") == 2
    assert complaint(capsys) == "prompts: prompt 1 ('') is empty"


def test_play_has_no_score_without_the_columns_that_it_takes(folder, capsys, tmp_path):
    (folder / "asked.jsonl").write_text('{"prompt": "Say a", "answer": "a"}\n')
    (folder / "answers.py").write_text("def right(prompts, responses, answer):\n    return [1.0] * len(responses)\n")
    assert train("--quiet", out="asked", prompts="asked.jsonl", reward="answers.py:right") == 0
    capsys.readouterr()
    assert command("play", "asked", "--json", prompt="Say b") == 0
    record = json.loads(out_of(capsys))
    assert record["mean_score"] is record["responses"][0]["score"] is None
    assert record["mean_kl"] > -1
    assert command("play", "asked", prompt="Say b") == 0
    assert "response 1: KL" in out_of(capsys)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_lack_of_memory_is_one_line_with_a_remedy(error, monkeypatch, capsys):
    def fails(*arguments):
        raise error("Tried\nto allocate")

    monkeypatch.setattr("rlzoo.lm.finetune.sft.fit", fails)
    assert command("sft", "texts.txt", model="model", out="none") == 1
    message = "there is not enough memory: Tried to allocate; .*lower micro_batch_tokens"
    assert re.search(message, capsys.readouterr().err)
