"""What each faster implementation gains: processor time of a training iteration without it, relative to with it.

    python benchmarks/speed/fast_parts.py               # control and language models, about half an hour
    python benchmarks/speed/fast_parts.py control

Each row takes turns with the complete set, each in a process of its own, and the table has the median of the ratios.
The language model of `Prompts` is a GPT-2 of four layers with random weights, that of `Sentiment` is SmolLM2-135M. A
part that gains less than 1.15 in every row does not stay in the package. Writes benchmarks/results/fast-parts.md.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro
from language_throughput import apart

RESULT = Path(__file__).parents[1] / "results" / "fast-parts.md"
ZOO = {"num_envs": 8, "num_steps": 32, "minibatch_size": 256, "epochs": 20}
PAPER = {"num_envs": 1, "num_steps": 2048, "minibatch_size": 64, "epochs": 10}
PERCEPTRON, RECURRENCE, NUMPY = "backward pass of MLPs", "backward pass through time", "acting through NumPy"
COMPILED, ROLLOUTS, NATIVE = "compiled step", "rollouts in native code", "MLPs in native code"
PACKED, PRODUCTS = "packed weights", "attention by products, and its cache"
BLOCKS, LAYERS = "vocabulary in blocks", "layers with gradients in place"
KERNELS, ONEDNN = "native code between the products", "products by oneDNN"

ROWS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "control": [
        (PERCEPTRON, "ppo-clip", "CartPole-v1", ZOO),
        (PERCEPTRON, "ppo-clip", "CartPole-v1", PAPER),
        (NATIVE, "ppo-clip", "CartPole-v1", ZOO),
        (NATIVE, "ppo-clip", "CartPole-v1", PAPER),
        (NATIVE, "trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512}),
        (RECURRENCE, "ppo-clip", "CartPoleNoVel-v1", {**ZOO, "network": "gru"}),
        (RECURRENCE, "ppo-clip", "CartPoleNoVel-v1", {**ZOO, "network": "lstm"}),
        (NUMPY, "ppo-clip", "CartPole-v1", ZOO),
        (NUMPY, "ppo-clip", "CartPole-v1", PAPER),
        (NUMPY, "trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512}),
        (ROLLOUTS, "ppo-clip", "CartPole-v1", ZOO),
        (ROLLOUTS, "ppo-clip", "CartPole-v1", PAPER),
        (ROLLOUTS, "trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512}),
        (ROLLOUTS, "trpo", "Acrobot-v1", {"num_envs": 64, "num_steps": 128}),
        (COMPILED, "ppo-clip", "CartPole-v1", ZOO),
        (COMPILED, "trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 512}),
    ],
    "language": [
        *((part, "ppo-clip", "Prompts", {"precision": "float32"}) for part in (PACKED, PRODUCTS, BLOCKS, LAYERS)),
        *((part, "ppo-clip", "Prompts", {"precision": "bfloat16"}) for part in (PACKED, PRODUCTS, BLOCKS, LAYERS)),
        *((KERNELS, "ppo-clip", "Prompts", {"precision": precision}) for precision in ("float32", "bfloat16")),
        *((KERNELS, "ppo-clip", "Sentiment", {"precision": precision}) for precision in ("float32", "bfloat16")),
        *((ONEDNN, "ppo-clip", env, {"precision": "float32"}) for env in ("Prompts", "Sentiment")),
    ],
}
"""Part, algorithm, environment and settings."""


def leave_out(part: str) -> None:
    """Takes a part out of the set of faster implementations."""
    if part in (PERCEPTRON, RECURRENCE, NUMPY, ROLLOUTS, NATIVE):
        from rlzoo.control import fast as control
        from rlzoo.control.acting import make_actor
        from rlzoo.control.fast import acting, mlp
        from rlzoo.control.networks import MLP, RecurrentMLP

        if part == NUMPY:
            control.make_numpy_actor = make_actor
        elif part == ROLLOUTS:
            acting.has_rollouts = lambda env: False
        elif part == NATIVE:
            mlp._library = lambda: None
        else:
            del control.NETWORKS[MLP if part == PERCEPTRON else RecurrentMLP]
        return
    from transformers import DynamicCache

    from rlzoo.lm.fast import kernels, model, products
    from rlzoo.lm.model.language_model import LanguageModel, TokenHead

    if part == KERNELS:
        kernels._library = lambda: None
        return
    if part == ONEDNN:
        products._is_faster = lambda: False
        return
    changes: dict[str, dict[str, Any]] = {
        PACKED: {"FastLanguageModel": LanguageModel},
        PRODUCTS: {"use_fastest_attention": lambda model: None, "new_cache": lambda base: DynamicCache()},
        BLOCKS: {"FastTokenHead": TokenHead},
        LAYERS: {"use_faster_layers": lambda model: None},
    }
    for name, plain in changes[part].items():
        setattr(model, name, plain)


def language(folder: Path) -> dict[str, Any]:
    """Settings of a run with a GPT-2 of four layers."""
    from language_throughput import SETTINGS, SIZES, __file__, make_model, make_prompts

    SIZES["four layers"] = {**SIZES["gpt2"], "config": {"n_layer": 4}}
    make_model("four layers", folder / "model")
    make_prompts("four layers", folder / "prompts.txt")
    return {
        "model": str(folder / "model"), "prompts": str(folder / "prompts.txt"), "reward": f"{__file__}:random_scores",
        "responses_per_batch": 8, "max_new_tokens": 32, **SETTINGS["ppo-clip"], "epochs": 1,
    }  # fmt: skip


def seconds(part: str | None, algorithm: str, env: str, settings: dict[str, Any]) -> float:
    """Processor seconds of an iteration, the least of several."""
    import torch

    from rlzoo import Trainer, make_config
    from rlzoo.runs import acceleration

    torch.set_num_threads(1)
    acceleration._WARM_UP = 0.0
    if part not in (None, COMPILED):
        leave_out(part)
    with tempfile.TemporaryDirectory() as folder:
        settings = {**(language(Path(folder)) if env == "Prompts" else {}), **settings}
        trainer = Trainer(make_config(algorithm, env, total_steps=10**9, compile=part == COMPILED, **settings))
        best = float("inf")
        for _ in range(3 if env in ("Prompts", "Sentiment") else 12):
            start = time.process_time()
            trainer.iterate()
            best = min(best, time.process_time() - start)
    return best


def table(kinds: Sequence[str], rounds: int) -> str:
    """The gain of each part, in Markdown."""
    lines = ["| part | run | gain (median; min – max) |", "|---|---|---|"]
    for part, algorithm, env, settings in (row for kind in kinds for row in ROWS[kind]):
        ratios = []
        for _ in range(rounds):
            without, complete = (apart(seconds, x, algorithm, env, settings) for x in (part, None))
            ratios.append(complete / without if part == COMPILED else without / complete)
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
        options = " ".join(f"{name}={x}" for name, x in settings.items())
        lines.append(f"| {part} | {algorithm} {env} {options} | {spread} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main(kinds: tuple[Literal["control", "language"], ...] = ("control", "language"), /, rounds: int = 3) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    RESULT.write_text(table(kinds, rounds))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
