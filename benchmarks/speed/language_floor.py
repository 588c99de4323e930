"""Lower bound of the time of a PPO iteration on GPT-2: its matrix products and attention alone, in the same precision.

    python benchmarks/speed/language_floor.py gpt2 --precision bf16
    python benchmarks/speed/language_floor.py gpt2 --precision bf16 --device cuda

Weights are already in the precision of the products, and results are written into memory that is there. Generation has
the layout of weights that is fastest for few rows, attention the faster one of the fused kernel and plain products.
Nothing else is computed: no normalisation, activation, softmax over the vocabulary, optimizer, cast or copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

import torch
import tyro
from language_throughput import PRECISIONS, SIZES, clock
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import GPT2Config


class Product:
    """x·W of (rows, inputs) and (inputs, outputs), and its two products of the backward pass."""

    def __init__(self, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        self.x, self.dx = torch.randn(rows, inputs).to(dtype), torch.empty(rows, inputs, dtype=dtype)
        self.y, self.dy = torch.empty(rows, outputs, dtype=dtype), torch.randn(rows, outputs).to(dtype)
        self.w, self.dw = torch.randn(outputs, inputs).to(dtype), torch.empty(outputs, inputs, dtype=dtype)

    def forward(self) -> float:
        """Seconds, by the faster library and with the faster order of the weights."""
        return self._fastest(self.x, self.w, self.y)

    def backward(self) -> float:
        transposed = self.w.t().contiguous()
        of_weight = seconds(lambda: torch.mm(self.dy.t(), self.x, out=self.dw))
        turned = self.dy.t().contiguous(), self.x.t().contiguous()
        return self._fastest(self.dy, transposed, self.dx) + min(of_weight, self._fastest(*turned, self.dw))

    def _fastest(self, x: Tensor, w: Tensor, out: Tensor) -> float:
        turned = w.t().contiguous()
        ways = [lambda: torch.mm(x, w.t(), out=out), lambda: torch.mm(x, turned, out=out)]
        if x.device.type == "cpu":
            ways.append(lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""))
        return min(map(seconds, ways))


def products(config: GPT2Config, rows: int, dtype: torch.dtype) -> list[Product]:
    """Those of a transformer layer."""
    h = config.n_embd
    return [Product(rows, i, o, dtype) for i, o in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h))]


def packed(token: list[Product]) -> Callable[[], object]:
    """The products of one new token of each row. All weights are their own, as they do not fit into the cache."""
    if token[0].w.device.type != "cpu":
        return lambda: [torch.mm(x.x, x.w.t(), out=x.y) for x in token]
    layouts = [(x.x, torch.ops.mkldnn._reorder_linear_weight(x.w, len(x.x))) for x in token]

    def work() -> None:
        for x, layout in layouts:
            torch.ops.mkldnn._linear_pointwise(x, layout, None, "none", [], "")

    return work


def attentions(
    config: GPT2Config, rows: int, tokens: int, dtype: torch.dtype
) -> tuple[list[Callable[..., Tensor]], list[Tensor]]:
    """The kinds of causal attention, and their inputs (rows, heads, tokens, size)."""
    shape = rows, config.n_head, tokens, config.n_embd // config.n_head
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2)).masked_fill(~causal, torch.finfo(dtype).min)
        return scores.softmax(-1) @ v

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    return [plain, fused], inputs


def seconds(work: Callable[[], object], times: int = 5) -> float:
    work()
    taken = []
    device = str(torch.get_default_device())
    for _ in range(times):
        start = clock(device)
        work()
        taken.append(clock(device) - start)
    return min(taken)


def floor(size: str, precision: str) -> dict[str, float]:
    """Seconds of the parts of an iteration: generation, three passes without gradient, four epochs."""
    shape, dtype, config = SIZES[size], getattr(torch, PRECISIONS[precision]), GPT2Config(**SIZES[size]["config"])
    rows, new, columns = shape["prompts"], shape["new_tokens"], shape["prompt_tokens"] + shape["new_tokens"] - 1
    layer, head = products(config, rows * columns, dtype), Product(rows * new, config.n_embd, config.vocab_size, dtype)

    forward = config.n_layer * sum(x.forward() for x in layer) + head.forward()
    backward = config.n_layer * sum(x.backward() for x in layer) + head.backward()
    kinds, x = attentions(config, rows, columns, dtype)
    with torch.no_grad():
        attention = min(seconds(lambda kind=kind: kind(*x)) for kind in kinds)
    both = min(seconds(lambda kind=kind: torch.autograd.grad(kind(*x), x, torch.ones_like(x[0]))) for kind in kinds)
    prompt = config.n_layer * sum(x.forward() for x in products(config, rows * shape["prompt_tokens"], dtype))
    token = [x for _ in range(config.n_layer) for x in products(config, rows, dtype)]
    token.append(Product(rows, config.n_embd, config.vocab_size, dtype))
    generation = prompt + new * seconds(packed(token))
    parts = {
        "generation": generation,
        "passes": 3 * (forward + config.n_layer * attention),
        "epochs": 4 * (forward + backward + config.n_layer * both),
    }
    return parts | {"total": sum(parts.values())}


def main(
    size: Literal["gpt2", "small"],
    /,
    precision: Literal["fp32", "bf16"] = "fp32",
    threads: int = 2,
    device: str = "cpu",
) -> None:
    torch.set_num_threads(threads)
    torch.set_default_device(device)
    print(json.dumps(floor(size, precision)))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
