"""Why a natural gradient step gains less than PPO-clip's update on a small language model, and what closes the gap.

    python benchmarks/studies/trust_region.py run      # trains what is missing -> results/trust-region.jsonl
    python benchmarks/studies/trust_region.py report   # -> results/trust-region.md

Each variant trains Arithmetic's SFT checkpoint for 30,000 sampled tokens from the settings of TRPO's natural step, with
seed 1; those of `REPEATED` again with three further seeds, by which nothing was chosen. `Variant` is TRPO with what was
tried: several steps on a buffer, each with the surrogate's gradient at the new θ and ratios to π_old, and with the KL
to π_old bounded throughout; the diagonal metric of Adam in place of F, or as its damping; F of the last block alone;
Kronecker factors (K-FAC) in place of F, or to precondition conjugate gradient; a bound on the KL of single tokens;
momentum; the clipped surrogate. Seconds are processor time without evaluations. What did not pay is not in the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlzoo import Trainer, make_config
from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Distribution
from rlzoo.core.estimators import GAE, Estimator
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.fields import Count, NonNegative, NonNegativeInt, Positive, PositiveSchedule
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, conjugate_gradient, line_search, trust_region_step
from rlzoo.optim.objective import with_old
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.files import append_jsonl, read_jsonl

RESULTS = Path(__file__).parents[1] / "results" / "trust-region.jsonl"
TASK, TOKENS, SEED, FURTHER_SEEDS = "Arithmetic", 30_000, 1, (2, 3, 4)
NATURAL: dict[str, Any] = {
    "responses_per_batch": 128, "cg_iters": 5, "cg_damping": 0.1, "vf_epochs": 5,
    "vf_minibatch_responses": 32, "beta": 0.0, "max_kl": "linear:0.1:0",
}  # fmt: skip
DIAGONAL = {"metric": "adam", "cg_iters": 0}
ADAM = {"gae_lambda": 0.95, "epochs": 4, "learning_rate": "linear:1e-3:0", "minibatch_responses": 64, "max_kl": 0.05}


@dataclass(frozen=True)
class Variant(Algorithm):
    """TRPO with several steps on a buffer, in one of two metrics."""

    name: ClassVar[str] = "variant"
    second_order: ClassVar[bool] = True

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.95)
    max_kl: PositiveSchedule = 0.01
    cg_iters: NonNegativeInt = 10
    """0 for the gradient itself, or the gradient in the diagonal metric."""
    cg_damping: NonNegative = 0.01
    metric: Literal["identity", "adam"] = "identity"
    """What damps F: the identity, or √v of Adam divided by its mean."""
    momentum: NonNegative = 0.0
    steps: Count = 1
    parts: Count = 1
    """Each step is of one of so many parts of the rows, in turn."""
    shrink: Positive = 1.5
    """The quadratic model of each step's KL is max_kl / stepsˢʰʳⁱⁿᵏ."""
    clip: NonNegative = 0.0
    token_kl: NonNegative = 0.0
    """Bound on the KL of every single token, in nats; 0 for none."""
    last_block: bool = False
    """F of the last block, the last normalisation and the embedding; the metric for the parameters below them."""
    kronecker: Literal["", "step", "preconditioner"] = ""
    """Kronecker factors give the step, or precondition conjugate gradient."""
    one_search: bool = False
    """Steps by Kronecker factors of the whole buffer, made once, and one line search after the last."""
    vf_learning_rate: PositiveSchedule = 1e-3
    vf_epochs: NonNegativeInt = 10
    vf_minibatch_size: Count = 128

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return State(rng, {"value": Adam(model.value_parameters()), "policy": Adam(model.policy_parameters())})

    def surrogate(self, policy: Distribution, batch: Buffer) -> Tensor:
        ratio = torch.exp(policy.log_prob(batch.action) - batch.logp)
        gain = ratio * batch.advantage
        if self.clip:
            gain = gain.minimum(ratio.clamp(1 - self.clip, 1 + self.clip) * batch.advantage)
        return batch.mean(gain)

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = with_old(model, self.estimator(buffer).rows(model.context).whitened)
        policy, max_kl = FlatPolicy(model), state.at(self.max_kl)
        whole = policy.objective(self.surrogate, batch)
        theta = start = policy.theta
        value, _ = whole.value_and_kl(theta)
        factors = KroneckerFactors(policy, batch, self.cg_damping, state.rng) if self.one_search else None

        def tokens_are_near(candidate: Tensor) -> bool:
            return not self.token_kl or largest_kl(policy, whole.parts, candidate) <= self.token_kl

        for k in range(self.steps):
            if k % self.parts == 0:
                order = torch.from_numpy(state.rng.permutation(batch.num_rows)).tensor_split(self.parts)
            part = batch if self.parts == 1 else batch.part(order[k % self.parts])
            x = self.direction(policy, theta, part, state, factors)
            bound = max_kl / self.steps**self.shrink
            step, _ = trust_region_step(x, fisher_curvature(policy, theta, part, x), bound)
            if self.one_search:
                theta = theta + step
                if k < self.steps - 1:
                    continue
                theta, step = start, theta - start
            values = [value]

            def accept(candidate: Tensor, values: list[float] = values) -> bool:
                after, kl = whole.value_and_kl(candidate)
                values.append(after)
                return kl <= max_kl and after > values[0] and tokens_are_near(candidate)

            theta, backtracks = line_search(accept, theta, step, 0.8, 10)
            value = values[-1] if backtracks < 10 else value
        policy.assign(theta)
        rate = state.at(self.vf_learning_rate)
        fit_value(model, state.optimizers["value"], batch, self.vf_epochs, self.vf_minibatch_size, rate, state.rng)
        return measure(model, batch)

    def direction(
        self, policy: FlatPolicy, theta: Tensor, part: Buffer, state: State, factors: KroneckerFactors | None
    ) -> Tensor:
        """(F + damping·D)⁻¹g, or D⁻¹g, where D is the metric and g may have momentum."""
        adam = state.optimizers["policy"]
        _, g = policy.objective(self.surrogate, part).value_and_gradient(theta)
        adam.count += 1
        adam.v.mul_(0.99).addcmul_(g, g, value=0.01)
        adam.m.mul_(self.momentum).add_(g, alpha=1 - self.momentum)
        b = adam.m / (1 - self.momentum**adam.count)
        root = (adam.v / (1 - 0.99**adam.count)).sqrt()
        metric = root / root.mean() + 1e-3 if self.metric == "adam" else torch.ones_like(g)
        if self.kronecker == "step":
            return (factors or KroneckerFactors(policy, part, self.cg_damping, state.rng)).solve(b, others=0.0)
        if not self.cg_iters:
            return b / metric
        fisher = fisher_vector_product(policy, theta, part)
        upper = of_last_block(policy) if self.last_block else torch.ones_like(g)

        def product(v: Tensor) -> Tensor:
            return upper * fisher(upper * v) + (self.cg_damping * upper + 1 - upper) * metric * v

        if self.kronecker:
            factors = KroneckerFactors(policy, part, self.cg_damping, state.rng)
            return preconditioned(product, b, self.cg_iters, factors.solve)
        return conjugate_gradient(product, b, self.cg_iters).x


@torch.no_grad()
def largest_kl(policy: FlatPolicy, parts: Sequence[Buffer], theta: Tensor) -> float:
    """The largest KL(π_old ‖ π_θ) of a token, in nats."""
    with_theta = (policy(theta, lambda model, part=part: model.distribution(part.obs)) for part in parts)  # type: ignore[misc]
    return max(float(part.old.kl(new).max()) for part, new in zip(parts, with_theta, strict=True))  # type: ignore[union-attr]


def of_last_block(policy: FlatPolicy) -> Tensor:
    """1 at the parameters of the last block, the last normalisation and the embedding that is the head; 0 at others."""
    last = max(int(part) for name in policy.named for part in name.split(".") if part.isdigit())
    kept = (f".h.{last}.", ".ln_f.", ".wte.", ".head.")
    return torch.cat([torch.full((p.numel(),), float(any(k in n for k in kept))) for n, p in policy.named.items()])


def preconditioned(
    product: Callable[[Tensor], Tensor], b: Tensor, iters: int, solve: Callable[[Tensor], Tensor]
) -> Tensor:
    """Conjugate gradient for M⁻¹A·x = M⁻¹b, with `solve` for M⁻¹."""
    x, r = torch.zeros_like(b), b.clone()
    z = solve(r)
    p, rz = z.clone(), float(r @ z)
    for _ in range(iters):
        ap = product(p)
        alpha = rz / float(p @ ap)
        x.add_(p, alpha=alpha)
        r.sub_(ap, alpha=alpha)
        z = solve(r)
        rz, previous = float(r @ z), rz
        p = z + rz / previous * p
    return x


class KroneckerFactors:
    """F of each linear layer as A ⊗ G, from tokens sampled from the policy (Martens & Grosse 2015)."""

    def __init__(self, policy: FlatPolicy, batch: Buffer, damping: float, rng: np.random.Generator) -> None:
        self.policy, self.damping = policy, damping
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        owners = {id(p): name for name, p in policy.named.items()}
        linear = [module for module in policy.model.trunk.modules() if isinstance(module, Conv1D | nn.Linear)]
        seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[module] = inputs[0].detach(), output

        moments: dict[nn.Module, tuple[Tensor, Tensor, int]] = {}
        hooks = [module.register_forward_hook(keep) for module in linear]
        acting = 0
        for part in batch.micro_batches(policy.model.micro_batch_steps):
            distribution = policy.model.distribution(part.obs)
            still = distribution.detach()
            action = still.from_noise(still.noise(generator))
            outputs = [output for _, output in seen.values()]
            grads = torch.autograd.grad(distribution.log_prob(action).sum(), outputs)
            acting += int(part.mask.sum())
            for (module, (a, _)), g in zip(seen.items(), grads, strict=True):
                a, g = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
                if module.bias is not None:
                    a = torch.cat([a, a.new_ones(len(a), 1)], 1)
                aa, gg, positions = moments.get(module, (0, 0, 0))
                moments[module] = aa + a.T @ a, gg + g.T @ g, positions + len(a)
            seen.clear()
        for hook in hooks:
            hook.remove()
        self.layers = []
        self.scale = 0.0
        for module, (aa, gg, positions) in moments.items():
            aa, gg = aa / positions, gg / acting
            pi = float((aa.trace() / len(aa) / (gg.trace() / len(gg)).clamp(min=1e-12)).sqrt())
            self.scale = max(self.scale, float(aa.trace() / len(aa) * gg.trace() / len(gg)))
            root = damping**0.5
            inverses = [torch.linalg.inv(x + d * torch.eye(len(x))) for x, d in ((aa, root * pi), (gg, root / pi))]
            bias = None if module.bias is None else owners[id(module.bias)]
            self.layers.append((owners[id(module.weight)], bias, isinstance(module, nn.Linear), *inverses))

    def solve(self, v: Tensor, others: float = 1.0) -> Tensor:
        """(A + d)⁻¹·V·(G + d)⁻¹ for each layer; for other parameters v·`others` / (s + d).

        s is the mean of F's diagonal in the layer where it is largest.
        """
        pieces = dict(zip(self.policy.named, self.policy.unflatten(v), strict=True))
        result = {name: x * (others / (self.scale + self.damping)) for name, x in pieces.items()}
        for weight, bias, transposed, a, g in self.layers:
            block = pieces[weight].T if transposed else pieces[weight]
            whole = block if bias is None else torch.cat([block, pieces[bias].unsqueeze(0)])
            whole = a @ whole @ g
            block = whole if bias is None else whole[:-1]
            result[weight] = block.T if transposed else block
            if bias is not None:
                result[bias] = whole[-1]
        return torch.cat([x.reshape(-1) for x in result.values()])


ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO-clip, its preset": ("ppo-clip", {}),
    "PPO-clip without a value": ("ppo-clip", {"vf_coef": 0.0}),
    "PPO-clip without a value, 2 epochs": ("ppo-clip", {"vf_coef": 0.0, "epochs": 2}),
    "PPO-clip, 1 epoch": ("ppo-clip", {"epochs": 1}),
    "PPO-clip without a value, 1 epoch, KL as below": (
        "ppo-clip", {"vf_coef": 0.0, "epochs": 1, "learning_rate": "linear:4e-3:0"},
    ),
    "natural step": ("variant", {}),
    "natural step, a tenth of the bound": ("variant", {"max_kl": "linear:0.01:0"}),
    "natural step, value fitted at 0.01": ("variant", {"vf_learning_rate": 0.01}),
    "natural step, critic of its own": ("variant", {"critic": "actor"}),
    "natural step, leave-one-out of 8": ("variant", {"estimator": "leave-one-out", "responses_per_prompt": 8}),
    "natural step, damping 0.001, 10 products": ("variant", {"cg_damping": 0.001, "cg_iters": 10}),
    "natural step, damping 1": ("variant", {"cg_damping": 1.0}),
    "natural step, momentum 0.9": ("variant", {"momentum": 0.9}),
    "natural step, damping in Adam's metric": ("variant", {"metric": "adam"}),
    "4 natural steps, each of a quarter of the rows": ("variant", {"steps": 4, "parts": 4}),
    "4 natural steps, damping 1, 3 products, bound 0.3": (
        "variant", {"steps": 4, "shrink": 1.0, "cg_damping": 1.0, "cg_iters": 3, "max_kl": "linear:0.3:0"},
    ),
    "natural step, 2 products": ("variant", {"cg_iters": 2}),
    "natural step, 2 products, larger bound early": ("variant", {"cg_iters": 2, "max_kl": "linear:0.3:0"}),
    "natural step, 2 products, KL of every token at most 0.3": (
        "variant", {"cg_iters": 2, "max_kl": "linear:0.3:0", "token_kl": 0.3},
    ),
    "natural step, F of the last block, gradient below": ("variant", {"last_block": True}),
    "natural step, F of the last block, Adam's metric below": ("variant", {"last_block": True, "metric": "adam"}),
    "4 steps, F of the last block, Adam's metric below, 3 products, bound 0.3": (
        "variant",
        {"last_block": True, "metric": "adam", "steps": 4, "shrink": 1.0, "cg_iters": 3, "max_kl": "linear:0.3:0"},
    ),
    "natural step, preconditioned by K-FAC, 2 products": ("variant", {"cg_iters": 2, "kronecker": "preconditioner"}),
    "step in K-FAC's metric": ("variant", {"kronecker": "step"}),
    "step in K-FAC's metric, damping 0.001": ("variant", {"kronecker": "step", "cg_damping": 1e-3}),
    "step in K-FAC's metric, damping 0.0001": ("variant", {"kronecker": "step", "cg_damping": 1e-4}),
    "step in K-FAC's metric, damping 0.00001": ("variant", {"kronecker": "step", "cg_damping": 1e-5}),
    "step in K-FAC's metric, damping 0.0001, bound 0.2": (
        "variant", {"kronecker": "step", "cg_damping": 1e-4, "max_kl": "linear:0.2:0"},
    ),
    "8 steps in K-FAC's metric, damping 0.0001, each of an eighth, one line search": (
        "variant",
        {"kronecker": "step", "cg_damping": 1e-4, "steps": 8, "parts": 8, "shrink": 1.0, "one_search": True},
    ),
    "gradient step": ("variant", {"cg_iters": 0}),
    "step in Adam's metric": ("variant", DIAGONAL),
    "step in Adam's metric, bound 0.2": ("variant", {**DIAGONAL, "max_kl": "linear:0.2:0"}),
    "4 steps in Adam's metric, each of a quarter": ("variant", {**DIAGONAL, "steps": 4, "parts": 4}),
    "8 steps in Adam's metric, each of an eighth, bound 0.2": (
        "variant", {**DIAGONAL, "steps": 8, "parts": 8, "max_kl": "linear:0.2:0"},
    ),
    "the same, clipped surrogate": (
        "variant", {**DIAGONAL, "steps": 8, "parts": 8, "max_kl": "linear:0.2:0", "clip": 0.2},
    ),
    "4 steps in Adam's metric, bound 0.3": (
        "variant", {**DIAGONAL, "steps": 4, "shrink": 1.0, "max_kl": "linear:0.3:0"},
    ),
    "8 steps in Adam's metric, each of a half, bound 0.3": (
        "variant", {**DIAGONAL, "steps": 8, "parts": 2, "shrink": 1.0, "max_kl": "linear:0.3:0"},
    ),
    "4 epochs of Adam, one line search": ("trpo", ADAM | {"clip_coef": 1e9}),
    "the same with clipped ratios (`trpo --epochs 4`)": ("trpo", ADAM),
}  # fmt: skip

REPEATED = (
    "PPO-clip, its preset",
    "natural step, 2 products",
    "step in K-FAC's metric, damping 0.0001",
    "step in K-FAC's metric, damping 0.0001, bound 0.2",
    "8 steps in K-FAC's metric, damping 0.0001, each of an eighth, one line search",
    "the same with clipped ratios (`trpo --epochs 4`)",
)


def train(label: str, seed: int) -> dict[str, Any]:
    algorithm, changes = ROWS[label]
    settings = starting_from(algorithm, TASK, changes)[0] if algorithm == "ppo-clip" else NATURAL | changes
    settings |= {"total_steps": TOKENS, "seed": seed}
    trainer = Trainer(make_config(f"{__file__}:Variant" if algorithm == "variant" else algorithm, TASK, **settings))
    start = time.process_time()
    kl = [x.metrics.get("kl", x.metrics.get("kl_k3")) for x in trainer]
    seconds = time.process_time() - start
    final = trainer.task.evaluate(500, seed=7, deterministic=False)
    trainer.task.close()
    return {
        "label": label,
        "seed": seed,
        "score": round(final.mean_return, 4),
        "kl_reference": round(float(final.further["kl_reference"]), 3),
        "kl": round(float(np.mean(kl)), 4),
        "seconds": round(seconds, 1),
    }


def read() -> dict[tuple[str, int], dict[str, Any]]:
    return {(x["label"], x["seed"]): x for _, x in read_jsonl(RESULTS)}


def run() -> None:
    torch.set_num_threads(1)
    for label, seed in [*((x, SEED) for x in ROWS), *((x, seed) for seed in FURTHER_SEEDS for x in REPEATED)]:
        if (label, seed) not in read():
            result = train(label, seed)
            print(result, flush=True)
            append_jsonl(RESULTS, [result])


def report() -> None:
    results = read()
    one = table([(x, [results[x, SEED]]) for x in ROWS if (x, SEED) in results])
    further = [(x, [results[x, seed] for seed in FURTHER_SEEDS if (x, seed) in results]) for x in REPEATED]
    lines = [*one, "", f"Means of the seeds {', '.join(map(str, FURTHER_SEEDS))}:", "", *table(further), ""]
    RESULTS.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


def table(rows: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[str]:
    heads = ["update", "score", "KL to the reference", "KL of an update", "seconds"]
    lines = ["| " + " | ".join(heads) + " |", "|---|--:|--:|--:|--:|"]
    for label, results in filter(lambda row: row[1], rows):
        score, reference, kl, seconds = (
            np.mean([x[name] for x in results]) for name in ("score", "kl_reference", "kl", "seconds")
        )
        lines.append(f"| {label} | {score:.3f} | {reference:.2f} | {kl:.4f} | {seconds:.0f} |")
    return lines


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "report": report}, description=__doc__)
