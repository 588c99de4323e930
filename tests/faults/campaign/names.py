"""Odd presets, ids and paths, in every place of a command that takes one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

from tests.faults.campaign.commands import SMALL, prepared
from tests.faults.campaign.sandbox import Sandbox, attack
from tests.faults.campaign.values import damaged, scalar

PRESET = """\
algorithm = "ppo-clip"

[CartPole-v1]
gamma = 0.98
learning_rate = "linear:0.002:0"
hidden = [8]
clip_coef = 0.2

[Pendulum-v1]
gamma = 0.9
"""
VALUES = (
    "{}", "[]", "[[8]]", "inf", "-inf", "nan", "1e400", "2020-01-01", "true", "''", "'linear:1:0'", "-1", "0x10",
    "9" * 400, "1_000", "{a = 1}", "['x']", "'os:system'", '"\\u0000"', "'''a\nb'''",
)  # fmt: skip
TABLES = ("[CartPole-v1]\n", "[[CartPole-v1]]\n", "[CartPole-v1.x]\n", "CartPole-v1 = 3\n", "[x]\n", "algorithm = 3\n",
          "algorithm = 'trpo'\n", "[" * 5000, "\ufeff", "a = [" * 3000, "")  # fmt: skip
MODULE = """\
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Good(CartPoleEnv): pass
class Plain: pass
class Bare(gymnasium.Env): pass
class NoInit(CartPoleEnv):
    def __init__(self): raise ValueError("a\\nb\\x1b[2J")
class Exits(CartPoleEnv):
    def __init__(self, **kwargs): raise SystemExit(3)
class NoSpace(CartPoleEnv):
    def __init__(self):
        super().__init__()
        del self.observation_space
class Unprintable:
    def __repr__(self): raise ValueError
thing, text, nothing = Unprintable(), "CartPole-v1", None
def function(*args, **kwargs): return None
def good(**kwargs): return CartPoleEnv()
"""
MODULES = {"mine.py": MODULE, "exits.py": "raise SystemExit(0)", "fails.py": "1 / 0", "broken.py": "def",
           "absent.py": "import absent_module"}  # fmt: skip
IDS = (
    *(f"{module}:{name}" for module in ("mine", "mine.py", "./mine.py") for name in (
        "Good", "Plain", "Bare", "NoInit", "Exits", "NoSpace", "thing", "text", "nothing", "function", "good", "Absent",
        "Good.x", "", "Good:x", "__builtins__", "gymnasium")),
    *("exits:X", "fails:X", "broken:X", "absent:X", "exits.py:X", "fails.py:X", "broken.py:X", "absent.py:X"),
    *("CartPole-v9", "CartPole", "cartpole-v1", "ALE/Pong-v5", "CartPole-v1 ", "phys2d/CartPole-v1", "gymnasium:Env",
      "os:system", "builtins:eval", "rlzoo.control.task:Control", "rlzoo:train", "json:JSONDecoder", "this:x",
      "..:x", ".mine:Good", "mine.:Good", "mine..x:Good", "hf:user/name", "hf:", "hf:../..", "smollm2", "gpt2",
      "trpo", "ppo-clip", "PPO-Clip", "gae", "MLP", "module:Class", "http://127.0.0.1:1/x", "Reviews", "Prompts",
      "HalfCheetah-v5", "CarRacing-v3", "tests.faults.campaign.names:IDS", "antigravity:x", "__main__:main"),
)  # fmt: skip
PLACES = (
    ["train", "?", "CartPole-v1", "--out", "new"],
    ["train", "ppo-clip", "?", "--out", "new"],
    ["train", "ppo-clip", "CartPole-v1", "--out", "?"],
    ["train", "ppo-clip", "CartPole-v1", "--out", "?", "--overwrite"],
    *(["train", "ppo-clip", "CartPole-v1", "--out", "new", f"--{name}", "?"]
      for name in ("estimator", "network", "wrapper", "preset", "model", "config", "logger")),
    *(["train", "ppo-clip", "Prompts", "--out", "new", "--model", "data/model", "--prompts", "data/prompts.txt",
       "--reward", "data/score.py:score", f"--{name}", "?"]
      for name in ("model", "prompts", "reward", "ptx", "reply", "reference", "tokenizer")),
    *(["search", *pair, "--out", "new", "--trials", "0"] for pair in (("?", "CartPole-v1"), ("trpo", "?"))),
    *([name, "?"] for name in ("resume", "diagnose", "benchmark", "report", "chat", "play", "eval")),
    *([name, "run", "--out", "?"] for name in ("export", "report")),
    ["push", "run", "./?"], ["push", "?", "./new"], ["export", "?", "--out", "policy.h"],
    ["benchmark", "suite.yaml", "--out", "?", "--jobs", "0"],
    *(["sft", *rest, "--epochs", "1"] for rest in (
        ["?", "--model", "data/model", "--out", "new"], ["data/texts.txt", "--model", "?", "--out", "new"],
        ["data/texts.txt", "--model", "data/model", "--out", "?"],
        ["data/texts.txt", "--model", "data/model", "--out", "?", "--overwrite"])),
    *(["reward-model", *rest, "--epochs", "1"] for rest in (
        ["?", "--model", "data/model", "--out", "new"], ["data/pairs.jsonl", "--model", "data/model", "--out", "?"])),
)  # fmt: skip
"""Commands with a place for an odd name."""
PATHS = (
    "fifo", "loop", "zero", "run/config.json", "run/config.json/x", "run/checkpoints", "run/checkpoints/64", "data",
    ".", "..", "run/..", "run/.", "./run", "run/", "data/model", "data/texts.txt", "empty", "empty.toml", "dangling",
    "folder", "n" * 300, "d/" * 200 + "x", "ü" * 100, "a\nb", "a\tb", " ", "-x", "--out", "~", "~nobody/x", "$HOME",
    "*", "new/new", "a" * 250, "a" * 255, "/dev/null", "/dev/full", "/dev/stdin", "/proc/self/mem",
    "/proc/self/environ", "/sys/kernel", "/proc/1/root", "file:///tmp", "con", "a:b", "a=b", "a,b", "{x}", "%s",
    "\x1b[2J", "\ud800", "../outside", "link", "x.toml",
)  # fmt: skip


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Puts an odd name into a command."""
    work = sandbox.work
    shutil.copytree(prepared(), work, dirs_exist_ok=True)
    _odd_files(work)
    kind = rng.choice(("preset", "id", "path", "path"))
    if kind == "preset":
        (work / "odd.toml").write_bytes(preset(rng, str(sandbox.canary)))
        words, name = (
            [*PLACES[1][:2], rng.choice(("CartPole-v1", "Pendulum-v1")), "--out", "new", "--preset", "?"],
            "odd.toml",
        )
    else:
        words = rng.choice(PLACES)
        name = rng.choice(IDS) if kind == "id" else rng.choice(PATHS)
        if ("../outside" in name and "--out" in words) or words[0] == "push":
            name = name.replace("../outside", "folder")  # the user may write there
    words = [word.replace("?", name) for word in words]
    if words[0] == "train":
        words += [x for key, value in SMALL.items() if "Prompts" not in words for x in (_flag(key), value)]
        words += ["--quiet", "--epochs", "1"] + (["--total-steps", "4"] if "Prompts" in words else [])
    return [f"{fault}: {words}"[:600] for fault in attack(sandbox, words)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def preset(rng: Random, canary: str) -> bytes:
    """The text of a hostile preset file."""
    lines = PRESET.splitlines(keepends=True)
    for _ in range(rng.choice((0, 1, 1, 2))):
        i = rng.randrange(len(lines))
        name = lines[i].partition(" =")[0]
        key = rng.choice((name, name, "epochs", "out", "env", "seed", '""', "x.y", '"a\\nb"'))
        value = rng.choice(VALUES) if rng.random() < 0.7 else repr(scalar(rng, canary))
        lines[i] = rng.choice(TABLES) if rng.random() < 0.2 else f"{key.strip()} = {value}\n"
    text = "".join(lines).encode(errors="surrogatepass")
    return damaged(rng, text) if rng.random() < 0.4 else text


def _odd_files(work: Path) -> None:
    for name, text in MODULES.items():
        (work / name).write_text(text)
    (work / "data" / "score.py").write_text("def score(prompts, responses):\n    return [0.0] * len(responses)\n")
    os.mkfifo(work / "fifo")
    for name, target in (("loop", "loop"), ("zero", "/dev/zero"), ("dangling", "absent"), ("link", "run")):
        (work / name).symlink_to(target)
    for name in ("empty", "empty.toml"):
        (work / name).touch()
    (work / "folder").mkdir()
    (work / "x.toml").mkdir()
