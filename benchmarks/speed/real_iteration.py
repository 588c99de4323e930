"""The parts of one iteration of PPO-clip on a real model, beside their floors and beside plain PyTorch.

    python benchmarks/speed/real_iteration.py --rounds 3
    python benchmarks/speed/real_iteration.py --rounds 3 --prompts 64 --device cuda

SmolLM2-135M continues 16 openings of texts, 8 times each, with up to 128 tokens. On a GPU, a first iteration is not
counted, and memory is that of the GPU. The floor of a part is the time of its products of weights alone, in the same
precision and on the same number of tokens, with the fastest layout.
Attention, normalisation, activations, softmax, Adam and casts are above it. `plain` is the same iteration with
`--no-fast`: PyTorch and transformers as they are. Generation is beside `model.generate` with the same weights.
Contestants take turns, each in its own process.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import tyro
from language_throughput import apart, clock, peak_memory_gb

RESULTS = Path(__file__).parents[1] / "results"
GROUP, NEW_TOKENS = 8, 128
PIECE = 1024
"""Steps of which the floor has logits at a time: those of all would not fit into any cache."""
PARTS = {
    "sampling": "sampling",
    "passes": "log-probabilities and values",
    "scoring": "reference and scores",
    "update": "update, 2 epochs of 4 minibatches",
}


def trainer(precision: str, fast: bool, prompts: int, device: str) -> Any:
    """A trainer with the defaults of language tasks, and four minibatches in a buffer."""
    from rlzoo.runs.configuration.defaults import configure
    from rlzoo.runs.loop import Trainer

    settings = {
        "precision": precision, "fast": fast, "max_new_tokens": NEW_TOKENS, "responses_per_prompt": GROUP,
        "responses_per_batch": prompts * GROUP, "minibatch_responses": prompts * GROUP // 4, "stop_kl": None,
        "device": device,
    }  # fmt: skip
    return Trainer(configure("ppo-clip", "Sentiment", None, True, settings)[0])


def iteration(run: Any) -> tuple[dict[str, float], Any]:
    """Seconds of each part of `Trainer.iterate`, and the buffer."""
    from rlzoo.core.collector import evaluate, score

    device = run.config.device
    marks = [clock(device)]

    def mark() -> None:
        marks.append(clock(device))

    experience = run.task.collect()
    mark()
    buffer = evaluate(run.model, experience.buffer.map(lambda x: x.to(device)))
    mark()
    buffer, _, _ = score(run.task.env, experience._replace(buffer=buffer))
    mark()
    run.algorithm.update(run.model, run.state, buffer)
    mark()
    return dict(zip(PARTS, (b - a for a, b in itertools.pairwise(marks)), strict=True)), buffer


def floors(config: Any, buffer: Any, precision: str, prompts: int, prompt_tokens: int) -> dict[str, float]:
    """Seconds of the products of each part, on as many tokens as it has to read."""
    from language_floor import Product, packed

    device = buffer.mask.device.type
    torch.set_default_device(device)
    dtype = getattr(torch, precision)
    h, inner = config.hidden_size, config.intermediate_size
    kv = h // config.num_attention_heads * config.num_key_value_heads
    shapes = [(h, h), (h, kv), (h, kv), (h, h), (h, inner), (h, inner), (inner, h)]
    head = h, config.vocab_size

    def products(tokens: int, actions: int, layers: int = 1) -> list[Product]:
        return [*(Product(tokens, *x, dtype) for _ in range(layers) for x in shapes), Product(actions, *head, dtype)]

    def seconds_of(tokens: int, actions: int, backward: bool = False) -> float:
        some = products(tokens, min(actions, PIECE))
        *layer, last = (x.forward() + (x.backward() if backward else 0.0) for x in some)
        return config.num_hidden_layers * sum(layer) + last * actions / min(actions, PIECE)

    actions, steps = int(buffer.mask.sum()), int(buffer.mask.any(0).sum())
    acting = max(1, actions // steps)  # rows that have not ended, on average
    decode = packed(products(acting, acting, config.num_hidden_layers))
    start = clock(device)
    for _ in range(steps):
        decode()
    sampling = seconds_of(prompt_tokens, prompts) + clock(device) - start
    one_pass = seconds_of(prompt_tokens + actions, actions)
    # A minibatch has a quarter of the rows.
    epochs = 2 * 4 * seconds_of(prompt_tokens + actions // 4, actions // 4, backward=True)
    torch.set_default_device("cpu")
    return {"sampling": sampling, "passes": one_pass, "scoring": one_pass, "update": epochs + one_pass}


def generate(run: Any, precision: str, prompts: int, device: str) -> float:
    """Seconds of `model.generate` on the prompts of a buffer."""
    from transformers import AutoModelForCausalLM

    from rlzoo.lm.model.padding import pad

    task, tokenizer = run.task, run.task.tokenizer
    source = Path(task._source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, precision)).eval().to(device)
    texts = [x for x in task.env.prompts.texts[:prompts] for _ in range(GROUP)]
    rows = pad([tokenizer(x)["input_ids"] for x in texts], tokenizer.pad_token_id, side="left")
    token, attention = (x.to(device) for x in rows)
    start = clock(device)
    with torch.no_grad():
        model.generate(
            token, attention_mask=attention.long(), max_new_tokens=NEW_TOKENS, do_sample=True, top_k=0, top_p=1.0,
            temperature=1.0, repetition_penalty=1.0, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
    return clock(device) - start


def contestant(what: str, precision: str, prompts: int, device: str, threads: int) -> dict[str, float]:
    """The parts of an iteration, and their floors, or the seconds of `model.generate`."""
    torch.set_num_threads(threads)
    run = trainer(precision, what != "plain", prompts, device)
    for _ in range(1 if device == "cpu" else 2):  # of which the last counts
        if what == "generate":
            result = {"sampling": generate(run, precision, prompts, device)}
        else:
            parts, buffer = iteration(run)
            result = {**parts, "tokens": float(buffer.mask.sum())}
    result["peak_memory_gb"] = peak_memory_gb(device)
    if what == "rlzoo":
        env = run.task.env
        prompt_tokens = sum(len(run.task.tokenizer(x)["input_ids"]) for x in env.prompts.texts[:prompts])
        below = floors(run.task.model.trunk.base.config, buffer, precision, prompts, prompt_tokens)
        result |= {f"floor of {name}": x for name, x in below.items()}
    return result


def main(
    precisions: tuple[str, ...] = ("bfloat16", "float32"),
    contestants: tuple[str, ...] = ("rlzoo", "plain", "generate"),
    prompts: int = 16,
    device: str = "cpu",
    rounds: int = 3,
    threads: int = 2,
) -> None:
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _, precision, what in itertools.product(range(rounds), precisions, contestants):
        try:
            result = apart(contestant, what, precision, prompts, device, threads)
        except Exception as error:
            print(precision, what, f"failed: {error!r}", flush=True)
        else:
            print(precision, what, result, flush=True)
            runs.setdefault((precision, what), []).append(result)
    command_line = f"`python benchmarks/speed/real_iteration.py {' '.join(sys.argv[1:])}`"
    name = "real-iteration" if device == "cpu" else f"real-iteration-{device}"
    where = f"{threads} thread(s)" if device == "cpu" else torch.cuda.get_device_name()
    (RESULTS / f"{name}.md").write_text(f"{command_line}, {where}.\n\n{table(runs)}")


def table(runs: dict[tuple[str, str], list[dict[str, float]]]) -> str:
    """Medians of the rounds' seconds. A contestant that failed, for lack of memory, has none."""

    def medians(precision: str, what: str, prefix: str = "") -> dict[str, float]:
        rounds = runs.get((precision, what), [])
        parts = {x: statistics.median(run[prefix + x] for run in rounds) for x in PARTS if rounds}
        return parts | {"all": sum(parts.values())} if parts else {}

    lines = [
        "| precision | part | rlzoo, s | floor, s | times the floor | plain, s | times as fast |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for precision in dict.fromkeys(key[0] for key in runs):
        ours, plain = medians(precision, "rlzoo"), medians(precision, "plain")
        below = medians(precision, "rlzoo", "floor of ")
        for name, seconds in ours.items():
            theirs = f"{plain[name]:.3g} | {plain[name] / seconds:.2f}" if plain else "– | –"
            above = f"{seconds:.3g} | {below[name]:.3g} | {seconds / below[name]:.2f}"
            lines.append(f"| {precision} | {PARTS.get(name, name)} | {above} | {theirs} |")
        if ours and (generation := [run["sampling"] for run in runs.get((precision, "generate"), [])]):
            seconds = statistics.median(generation)
            beside = f"{ours['sampling']:.3g} | | | {seconds:.3g} | {seconds / ours['sampling']:.2f}"
            lines.append(f"| {precision} | sampling beside `model.generate` | {beside} |")
    lines += ["", "| precision | contestant | response tokens | tokens/s | peak memory, GB |", "|---|---|--:|--:|--:|"]
    for (precision, what), rounds in runs.items():
        if what != "generate":
            tokens, memory = (statistics.median(run[x] for run in rounds) for x in ("tokens", "peak_memory_gb"))
            pace = statistics.median(run["tokens"] / sum(run[x] for x in PARTS) for run in rounds)
            lines.append(f"| {precision} | {what} | {tokens:.0f} | {pace:.0f} | {memory:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
