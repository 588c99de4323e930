"""rlzoo beside TRL 0.11.4 on language models: response tokens per second, peak memory, and generation.

    python -m venv trl
    trl/bin/pip install torch==2.13.0 trl==0.11.4 transformers==4.46.3 'accelerate<1.3' 'datasets<4' rich
    python benchmarks/speed/language_throughput.py ppo --peer trl/bin/python        # the same PPO iteration
    python benchmarks/speed/language_throughput.py generate                         # beside model.generate
    python benchmarks/speed/language_throughput.py trpo --sizes gpt2                # natural gradients beside PPO-clip

With `--device cuda` everything is on a GPU, and memory is that of the GPU.

TRL needs other versions of its dependencies, so it has its own environment. Contestants take turns, each in its own
process, so that load of the machine affects all of them. The sizes are those of `benchmarks/peers/trl_ppo.py`. An
iteration is everything from prompts to the updated model: generation, log-probabilities, reference, rewards, four
epochs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
MAX_KL = 0.01
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"prompts": 16, "prompt_tokens": 16, "new_tokens": 32, "iterations": 2, "config": {}},
    "small": {
        "prompts": 64, "prompt_tokens": 8, "new_tokens": 20, "iterations": 20,
        "config": {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 64},
    },
}  # fmt: skip
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
_NATURAL = {"vf_epochs": 4, "vf_minibatch_responses": "all", "micro_batch_tokens": 192, "cg_iters": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo-clip": {"epochs": 4, "minibatch_responses": "all", "learning_rate": 1e-5, "beta": 0.2},
    "npg": {**_NATURAL, "step_kl": MAX_KL},
    "trpo": {**_NATURAL, "max_kl": MAX_KL},
    "trpo by passes of Adam": {
        "epochs": 4, "minibatch_responses": "all", "learning_rate": 1e-5, "beta": 0.2, "max_kl": MAX_KL,
        "vf_epochs": 4, "vf_minibatch_responses": "all",
    },
}  # fmt: skip
"""By algorithm, which is the first word."""


def on_device(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """The settings there. A GPU has the memory for a whole buffer as one micro-batch."""
    return {name: x for name, x in settings.items() if device == "cpu" or name != "micro_batch_tokens"}


def random_scores(prompts: list[str], responses: list[str]) -> list[float]:
    """Random scores, which take no time."""
    import numpy as np

    return np.random.default_rng(len(prompts)).normal(size=len(prompts)).tolist()


def make_model(size: str, folder: Path) -> None:
    """A GPT-2 with random weights, and a tokenizer with one word for each id.

    The last id is the end of sequence. Its logit is near -100, so that all responses have the full length, as TRL's do.
    """
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    from rlzoo.lm.model.pretrained import new_causal_lm
    from rlzoo.lm.model.saving import save, use_tokens

    model = new_causal_lm({"model_type": "gpt2", **SIZES[size]["config"]})
    with torch.no_grad():
        model.transformer.wte.weight[-1] = 10 * torch.eye(model.config.n_embd)[0]
        model.transformer.ln_f.bias[0] = -10
    words = Tokenizer(WordLevel({str(i): i for i in range(model.config.vocab_size)}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    end = str(model.config.vocab_size - 1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end, pad_token=end)
    use_tokens(model, tokenizer)
    save(model, tokenizer, folder)


def make_prompts(size: str, path: Path) -> None:
    """Prompts of random words without the end of sequence."""
    import numpy as np

    shape = SIZES[size]["prompts"] * 4, SIZES[size]["prompt_tokens"]
    words = np.random.default_rng(0).integers(SIZES[size]["config"].get("vocab_size", 50257) - 1, size=shape)
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in words))


def clock(device: str) -> float:
    """Seconds, once the device has finished its work."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_memory_gb(device: str) -> float:
    """Largest memory so far: of the process, or of what it has on a GPU."""
    import torch

    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def train(
    algorithm: str, size: str, precision: str, iterations: int, folder: Path, device: str, **settings: Any
) -> dict[str, Any]:
    """Seconds and response tokens of iterations after a first one."""
    from rlzoo import Trainer, make_config

    shape = SIZES[size]
    config = make_config(
        algorithm, "Prompts", model=str(folder / "model"), prompts=str(folder / "prompts.txt"),
        reward=f"{__file__}:random_scores", responses_per_batch=shape["prompts"], max_new_tokens=shape["new_tokens"],
        precision=PRECISIONS[precision], total_steps=10**9, device=device, **settings,
    )  # fmt: skip
    trainer = Trainer(config)
    trainer.iterate()
    seconds, tokens, metrics = [], [], {}
    for _ in range(iterations):
        start, before = clock(device), trainer.step
        metrics = trainer.iterate().metrics
        seconds.append(clock(device) - start)
        tokens.append(trainer.step - before)
    return {
        "iteration_seconds": statistics.median(seconds),
        "iteration_seconds_all": seconds,
        "tokens_per_second": statistics.median(n / s for n, s in zip(tokens, seconds, strict=True)),
        "metrics": metrics,
    }


def generate(size: str, precision: str, iterations: int, folder: Path, device: str) -> dict[str, Any]:
    """Seconds of rlzoo's collection and of `model.generate`, in turns, with the same weights and prompts."""
    import torch

    from rlzoo.core.collector import Collector
    from rlzoo.lm.fast.model import accelerate_model
    from rlzoo.lm.model import pretrained
    from rlzoo.lm.model.acting import TokenActor
    from rlzoo.lm.model.language_model import LanguageModel
    from rlzoo.lm.reward.env import LMEnv
    from rlzoo.lm.reward.generation import Generation

    shape = SIZES[size]
    model = pretrained.load_causal_lm(folder / "model")
    dtype = {"fp32": None, "bf16": torch.bfloat16}[precision]
    ours = LanguageModel(model, precision=dtype).to(device)
    theirs = pretrained.load_causal_lm(folder / "model").to(device, dtype or torch.float32)
    tokenizer = pretrained.load_tokenizer(folder / "model")
    lines = (folder / "prompts.txt").read_text().splitlines()[: shape["prompts"]]
    prompt = torch.tensor(pretrained.encode(tokenizer, lines), device=device)
    everywhere = torch.ones_like(prompt).bool()
    end, new = int(tokenizer.eos_token_id), shape["new_tokens"]
    accelerate_model(ours)
    env = LMEnv(ours, tokenizer, lines, random_scores, Generation(max_new_tokens=new)).over(lines)
    collector = Collector(env, whole_episodes=True)
    seconds: dict[str, list[float]] = {"ours": [], "generate": []}
    for _ in range(iterations + 1):
        start = clock(device)
        collector.collect(TokenActor(ours))
        seconds["ours"].append(clock(device) - start)
        start = clock(device)
        with torch.no_grad():
            theirs.generate(
                prompt, attention_mask=everywhere.long(), max_new_tokens=new, do_sample=True, top_k=0,
                eos_token_id=end, pad_token_id=end,
            )  # fmt: skip
        seconds["generate"].append(clock(device) - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def contestant(what: str, size: str, precision: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement of rlzoo."""
    import torch

    torch.set_num_threads(options.threads)
    iterations = options.iterations or SIZES[size]["iterations"]
    if what in SETTINGS:
        settings = on_device(SETTINGS[what], options.device)
        result = train(what.split()[0], size, precision, iterations, folder, options.device, **settings)
    else:
        result = generate(size, precision, iterations, folder, options.device)
    return {**result, "peak_memory_gb": round(peak_memory_gb(options.device), 2)}


def apart(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """The result of a function in a new process, whose time and memory are its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments, **more).result()


def output_of(command: list[str]) -> dict[str, Any]:
    """The JSON in the last line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def by_script(script: list[str], size: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement by another script."""
    common = [f"--threads={options.threads}", f"--device={options.device}"]
    return output_of([*script, size, f"--precision={precision}", *common])


def compare_ppo(options: argparse.Namespace) -> list[str]:
    lines = ["| model | precision | rlzoo tokens/s | TRL tokens/s | ratio | rlzoo GB | TRL GB | ratio | time / floor |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    trl = [options.peer, str(HERE.parent / "peers" / "trl_ppo.py")]
    trl += [f"--iterations={options.iterations}"] if options.iterations else []
    floor = [sys.executable, str(HERE / "language_floor.py")]
    for size in options.sizes:
        with model_and_prompts(size) as folder:
            rounds = []
            for _ in range(options.rounds):
                theirs = by_script(trl, size, "fp32", options)
                measured = {p: apart(contestant, "ppo-clip", size, p, folder, options) for p in options.precisions}
                for p in options.precisions:
                    measured[p]["floor_seconds"] = by_script(floor, size, p, options)["total"]
                rounds.append((theirs, measured))
                print(json.dumps({"size": size, "round": rounds[-1]}), flush=True)
        for precision in options.precisions:
            mine = [r[precision] for _, r in rounds]
            other = [t for t, _ in rounds]
            ratios = sorted(m["tokens_per_second"] / t["tokens_per_second"] for m, t in zip(mine, other, strict=True))
            memory = statistics.median(m["peak_memory_gb"] for m in mine)
            memory_other = statistics.median(t["peak_memory_gb"] for t in other)
            above = statistics.median(m["iteration_seconds"] / m["floor_seconds"] for m in mine)
            lines.append(
                f"| {size} | {precision} | {statistics.median(m['tokens_per_second'] for m in mine):,.1f} "
                f"| {statistics.median(t['tokens_per_second'] for t in other):,.1f} "
                f"| **{statistics.median(ratios):.2f}** ({ratios[0]:.2f} – {ratios[-1]:.2f}) "
                f"| {memory:.2f} | {memory_other:.2f} | {memory / memory_other:.2f} | {above:.2f} |"
            )
    notes = "TRL in float32 throughout; ratios are medians of rounds (lowest – highest). "
    notes += "The floor is that of `language_floor.py`."
    return [*lines, "", notes]


def compare_generation(options: argparse.Namespace) -> list[str]:
    lines = ["| model | precision | rlzoo, s | model.generate, s | ratio |", "|---|---|---|---|---|"]
    for size in options.sizes:
        with model_and_prompts(size) as folder:
            for precision in options.precisions:
                result = apart(contestant, "generate", size, precision, folder, options)
                print(json.dumps({"size": size, "precision": precision, **result}), flush=True)
                lines.append(
                    f"| {size} | {precision} | {result['ours']:.3f} | {result['generate']:.3f} "
                    f"| **{result['generate'] / result['ours']:.2f}** |"
                )
    return lines


def compare_natural(options: argparse.Namespace) -> list[str]:
    lines = ["| model | algorithm | seconds an iteration | price | peak GB | KL | accepted | backtracks |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for size in options.sizes:
        with model_and_prompts(size) as folder:
            rounds = []
            for _ in range(options.rounds):
                rounds.append({name: apart(contestant, name, size, "fp32", folder, options) for name in SETTINGS})
                print(json.dumps({"size": size, "round": rounds[-1]}), flush=True)
        for name in SETTINGS:
            results = [r[name] for r in rounds]
            prices = sorted(r[name]["iteration_seconds"] / r["ppo-clip"]["iteration_seconds"] for r in rounds)
            metrics = results[-1]["metrics"]
            kl = metrics.get("kl", metrics.get("kl_k3"))
            searched = [f"{metrics[key]:.0f}" if key in metrics else "" for key in ("accepted", "backtracks")]
            lines.append(
                f"| {size} | {name} | {statistics.median(r['iteration_seconds'] for r in results):.3g} "
                f"| **{statistics.median(prices):.2f}** ({prices[0]:.2f} – {prices[-1]:.2f}) "
                f"| {max(r['peak_memory_gb'] for r in results):.2f} | {kl:.4f} | {' | '.join(searched)} |"
            )
    settings = ", ".join(f"{key} {value}" for key, value in on_device(_NATURAL, options.device).items())
    return [*lines, "", f"The price is in iterations of ppo-clip, in turns. npg and trpo by natural steps: {settings}."]


@contextmanager
def model_and_prompts(size: str) -> Iterator[Path]:
    """The folder of a model and its prompts."""
    with tempfile.TemporaryDirectory() as folder:
        make_prompts(size, Path(folder, "prompts.txt"))
        apart(make_model, size, Path(folder, "model"))
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ppo", "generate", "trpo"])
    parser.add_argument("--peer", default="trl/bin/python", help="Python of the environment with TRL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="of a measurement; by default 2 for gpt2 and 20 for small")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    compare = {"ppo": compare_ppo, "generate": compare_generation, "trpo": compare_natural}[options.what]
    table = compare(options)
    words = ["python benchmarks/speed/language_throughput.py", *sys.argv[1:]]
    shown = " ".join(words).replace(options.peer, "trl/bin/python")
    RESULTS.mkdir(exist_ok=True)
    import torch

    where = torch.cuda.get_device_name() if options.device != "cpu" else f"{options.threads} PyTorch threads"
    text = "\n".join([f"`{shown}`, {where}.", "", *table, ""])
    name = options.what if options.device == "cpu" else f"{options.what}-{options.device.replace(':', '-')}"
    (RESULTS / f"language-{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
