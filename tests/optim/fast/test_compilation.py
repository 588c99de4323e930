"""Loops of native code against the same steps in PyTorch."""

import logging
import math
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rlzoo.core.fast import library
from rlzoo.optim.fast import compilation
from rlzoo.optim.fast.codegen import write_loop
from rlzoo.optim.fast.compilation import Compilation

HIDDEN, CLASSES, FEATURES, ROWS = 64, 2, 4, 256
# The smaller side of a matrix first, so that no product is narrow in its last dimension.
LAYERS = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
VALUE_LAYERS = [*LAYERS[:4], (1, HIDDEN), (1,)]
SHAPES = [torch.Size(shape) for shape in LAYERS + VALUE_LAYERS]
SIZES = [shape.numel() for shape in SHAPES]


def mlp(obs, weights):
    w1, b1, w2, b2, w3, b3 = weights
    hidden = torch.tanh(obs @ w1 + b1)
    hidden = torch.tanh(hidden @ w2 + b2)
    return hidden @ w3.t() + b3


def ppo_step(i, theta, moments, beta_powers, loss, norm, order, learning_rate, clip_coef, *tensors):
    """One clipped PPO step with Adam: every kind of input, a gradient inside, and several outputs."""
    rows = order.index_select(0, i.reshape(1))[0]
    obs, action, logp, advantage, return_, mask = (x.index_select(0, rows) for x in tensors)
    point = theta.detach().requires_grad_(True)
    weights = [part.view(shape) for part, shape in zip(point.split(SIZES), SHAPES, strict=True)]
    log_probs = torch.log_softmax(mlp(obs, weights[:6]), -1)
    value = mlp(obs, weights[6:]).squeeze(-1)
    ratio = (log_probs.gather(1, action[:, None]).squeeze(1) - logp).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantage)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    row_loss = -surrogate + 0.25 * (value - return_).square() - 0.01 * entropy
    loss = torch.where(mask, row_loss, 0.0).sum() / mask.sum()
    (gradient,) = torch.autograd.grad(loss, point)
    norm = gradient.norm()
    gradient = gradient * (0.5 / (norm + 1e-6)).clamp(max=1.0)
    first = 0.9 * moments[0] + 0.1 * gradient
    second = 0.999 * moments[1] + 0.001 * gradient.square()
    power1, power2 = beta_powers[0] * 0.9, beta_powers[1] * 0.999
    change = learning_rate * (first / (1 - power1)) / ((second / (1 - power2)).sqrt() + 1e-5)
    state = theta - change, torch.stack((first, second)), torch.stack((power1, power2))
    return *state, loss.detach(), norm


def ppo_inputs():
    random = torch.Generator().manual_seed(0)
    rows = [torch.randn(ROWS, generator=random) for _ in range(3)]
    return (
        0.1 * torch.randn(sum(SIZES), generator=random),
        torch.zeros(2, sum(SIZES)),
        torch.ones(2),
        torch.zeros(()),
        torch.zeros(()),
        torch.stack([torch.randperm(ROWS, generator=random)[:64] for _ in range(5)]),
        torch.tensor(3e-4),
        torch.tensor(0.2),
        torch.randn(ROWS, FEATURES, generator=random),
        torch.randint(CLASSES, (ROWS,), generator=random),
        -0.7 + 0.1 * rows[0],
        rows[1],
        rows[2],
        torch.rand(ROWS, generator=random) > 0.1,
    )


CARRIED = 5
"""Of the inputs, those that a step changes."""


@pytest.fixture(autouse=True)
def nothing_said():
    library.say.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("RLZOO_CACHE", str(directory))
    return directory


def double(i, x):
    return (2 * x,)


def doubled(x=None):
    """A loop over `double`."""
    return Compilation(double, [torch.ones(2) if x is None else x], []).loop()


def eager(step, count, carry, inputs=()):
    for i in range(count):
        carry = tuple(x.detach() for x in step(torch.tensor(i), *carry, *inputs))
    return carry


def assert_equals_eager(step, carry, inputs=(), counts=(0, 1, 3), rtol=1e-5, atol=1e-6):
    before = [x.clone() for x in (*carry, *inputs)]
    loop = Compilation(step, carry, inputs).loop()
    assert loop is not None
    for count in counts:
        actual, expected = loop(torch.tensor(count), *carry, *inputs), eager(step, count, carry, inputs)
        for x, y in zip(actual, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=True)
    assert all(torch.equal(x, y) for x, y in zip((*carry, *inputs), before, strict=True))


def test_without_a_compiler_one_line_says_so_and_there_is_no_loop(cache, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "missing-compiler")
    assert doubled() is None
    (record,) = caplog.records
    assert record.name == "rlzoo"
    assert record.levelno == logging.WARNING
    assert "no C++ compiler: neither g++ nor clang++, nor one that CXX names" in record.getMessage()
    assert "eager" in record.getMessage()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert list(cache.iterdir()) == []


def test_two_compilations_that_fail_for_one_reason_say_so_once(cache, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "missing-compiler")
    with caplog.at_level(logging.INFO):
        assert [doubled(), doubled(torch.ones(3)), doubled(torch.ones(4, dtype=torch.float64))] == [None] * 3
    assert len(caplog.records) == 1


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """What takes the place of the compiler: a shell script."""

    def put(script):
        path = tmp_path / "own-compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setenv("CXX", str(path))

    return put


ERRORS = {
    "code": ("In file:\\nx.cpp:1:2: error: no such thing\\n  1 | x", "x.cpp:1:2: error: no such thing"),
    "full disk": ("ld: link failed: No space\\ncollect2: error: ld returned 1", "ld: link failed: No space"),
}


@pytest.mark.parametrize(("output", "line"), ERRORS.values(), ids=ERRORS)
def test_a_failed_compilation_is_reported_by_the_line_of_its_error(output, line, cache, compiler, caplog):
    compiler(f"cat >/dev/null; echo '{output}' >&2; exit 1")
    assert doubled() is None
    (record,) = caplog.records
    assert record.getMessage().endswith(f"own-compiler: {line}")
    assert not any(path.is_dir() for path in cache.iterdir())


def test_a_compilation_that_nobody_waits_for_ends_with_its_process(cache, compiler, tmp_path):
    compiler(f"echo $$ >{tmp_path}/pid; exec sleep 60")
    compilation_ = Compilation(double, [torch.ones(2)], [])
    until = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    del compilation_
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not any(path.is_dir() for path in cache.iterdir())


def test_only_tensors_on_the_cpu_are_compiled(cache, caplog):
    assert doubled(torch.ones(2, device="meta")) is None
    assert "only updates on the CPU" in caplog.text


def test_a_library_that_cannot_be_loaded_is_kept(cache, monkeypatch, caplog):
    """The disk of the cache may run no code."""
    assert doubled() is not None
    (folder,) = cache.glob("*-library")

    def refuse(path):
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(library.ctypes, "CDLL", refuse)
    assert doubled() is None
    assert "failed to map segment" in caplog.text
    assert folder.is_dir()


def test_a_cache_directory_that_others_may_write_is_not_used(cache, caplog):
    cache.mkdir()
    cache.chmod(0o777)
    assert doubled() is None
    assert str(cache) in caplog.text
    assert "RLZOO_CACHE" in caplog.text
    assert list(cache.iterdir()) == []


def test_arguments_unlike_the_example_are_refused():
    def run(count, x, y):
        return (2 * x,)

    run = compilation._with_check(run, (torch.ones(2, 3), torch.tensor(1.0)))
    (result,) = run(torch.tensor(1), torch.full((2, 3), 2.0), torch.tensor(5.0))
    assert result.tolist() == [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    with pytest.raises(ValueError, match="compiled for 2 tensors, called with 1"):
        run(torch.tensor(1), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"tensor 0 was compiled for shape \(2, 3\).* with shape \(1, 3\)"):
        run(torch.tensor(1), torch.ones(1, 3), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"tensor 1 .*float32.*; called with .*int64"):
        run(torch.tensor(1), torch.ones(2, 3), torch.tensor(1))
    with pytest.raises(ValueError, match=r"stride \(3, 1\).*stride \(1, 2\)"):
        run(torch.tensor(1), torch.ones(3, 2).t(), torch.tensor(1.0))


def test_what_depends_on_inputs_alone_is_computed_before_the_loop():
    def step(i, x, weight, obs):
        return (x + torch.tanh(obs @ weight).t() @ (obs @ x) + i,)

    def in_place(i, x, weight, obs):
        return ((obs @ weight).relu_().t() @ (obs @ x) + i,)

    example = torch.tensor(1), torch.ones(3), torch.ones(3, 3), torch.ones(4, 3)
    fixed, none = (write_loop(function, 1, example).code.partition("RUN(")[2] for function in (step, in_place))
    assert fixed.startswith("if (part1(loop)) return 1;")
    assert none.startswith(",")


def test_a_loop_compiled_once_equals_eager_steps_and_is_loaded_from_then_on(
    cache, tmp_path, monkeypatch, capfd, caplog
):
    monkeypatch.chdir(tmp_path)
    inputs = ppo_inputs()
    before = [tensor.clone() for tensor in inputs]
    caplog.set_level(logging.INFO)
    both = [Compilation(ppo_step, inputs[:CARRIED], inputs[CARRIED:]) for _ in range(2)]
    loops = [compilation.loop() for compilation in both]
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    (folder,) = cache.iterdir()
    assert os.listdir(tmp_path) == ["cache"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}

    for count in (0, 1, 5):
        expected = eager(ppo_step, count, inputs[:CARRIED], inputs[CARRIED:])
        for loop in loops:
            for actual, x in zip(loop(torch.tensor(count), *inputs), expected, strict=True):
                torch.testing.assert_close(actual, x, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    first, second = (loops[0](torch.tensor(5), *inputs) for _ in range(2))
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))

    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("compiled again"))
    loaded = Compilation(ppo_step, inputs[:CARRIED], inputs[CARRIED:]).loop()
    assert all(torch.equal(a, b) for a, b in zip(loaded(torch.tensor(5), *inputs), first, strict=True))
    assert caplog.messages == ["compiling the update in the background, once on this machine"]


def test_the_compiler_of_pytorch_is_not_imported(tmp_path):
    code = (
        "import sys, torch\nfrom rlzoo.optim.fast.compilation import Compilation\n"
        "step = lambda i, x: (torch.log_softmax(x, 0),)\n"
        "assert Compilation(step, [torch.ones(3)], []).loop() is not None\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'sympy'} & {*sys.modules}"
    )
    environment = {**os.environ, "RLZOO_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3], env=environment)


# Operations: each group is one loop, since a compiler takes its time.

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=GENERATOR).to(dtype)


def gradient_step(function, *shapes):
    """A step of gradient descent on the mean square of `function(weights, x)`."""

    def step(i, theta, x):
        with torch.enable_grad():
            point = theta.detach().requires_grad_()
            parts = point.split([math.prod(shape) for shape in shapes])
            weights = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
            (gradient,) = torch.autograd.grad(function(weights, x).square().mean(), point)
        return (theta - 0.1 * gradient,)

    return step


def activations(weights, x):
    hidden = x @ weights[0] + weights[1]
    known = [torch.tanh, torch.sigmoid, F.relu, F.silu, F.softplus, F.leaky_relu, torch.exp, torch.abs, torch.sin]
    by_pytorch = [F.elu, F.gelu, F.hardtanh, F.logsigmoid, torch.erf]
    return torch.stack([function(hidden) for function in known + by_pytorch]) @ weights[2]


def reductions(weights, x):
    y = x @ weights[0]
    parts = [y.log_softmax(-1), y.softmax(0), y - y.logsumexp(-1, keepdim=True), y - y.amax(0), y * y.var(-1)[:, None]]
    return torch.cat([*parts, y * y.mean(0), (y / y.norm()).cumsum(1), y.max(-1, keepdim=True).values.expand_as(y)])


def reductions_of_columns(weights, x):
    return torch.stack([x @ weights[0], (x @ weights[0]).t().contiguous().t()]).sum(1)


def slices(weights, x):
    y = x @ weights[0]
    columns = torch.cat([y[::2, 1:4], y[1::2, :3][:1], y.t().contiguous()[:3, :3], y[:, torch.tensor([0, 2, 2])]])
    return torch.stack([columns, columns.flip(0)]).permute(1, 2, 0) * y[3, 2]


def tables(weights, x):
    chosen = torch.tensor([[1, 2, 3], [3, 0, 5]])
    rows = F.embedding(chosen, weights[0])
    return torch.cat(
        [
            rows.flatten(0, 1),
            weights[0].index_select(0, chosen[0]),
            weights[0].gather(0, chosen[:, :2].repeat(1, 3)[:, :5]),
        ]
    )


def images(weights, x):
    hidden = F.relu(F.conv2d(x.view(-1, 1, 4, 3), weights[0], weights[1]))
    return F.layer_norm(hidden.flatten(1), (12,)) @ weights[2]


def batches(weights, x):
    return torch.bmm(x.view(3, 4, 6), weights[0].expand(3, 6, 5)).tanh() + torch.einsum("bi,io->bo", x, weights[0])[0]


GRADIENTS = {
    "activations": (activations, (6, 5), (5,), (5, 3)), "reductions": (reductions, (6, 5)),
    "columns": (reductions_of_columns, (6, 5)), "slices": (slices, (6, 5)), "tables": (tables, (6, 5)),
    "images": (images, (3, 1, 3, 2), (3,), (12, 2)), "batches": (batches, (6, 5)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_those_of_pytorch(name, dtype):
    function, *shapes = GRADIENTS[name]
    theta = 0.5 * normal(sum(map(math.prod, shapes)), dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert_equals_eager(
        gradient_step(function, *shapes), [theta], [normal(12, 12 if name == "images" else 6, dtype=dtype)],
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


MODULES = {
    "GRU": lambda: torch.nn.GRU(3, 4, batch_first=True),
    "RNN": lambda: torch.nn.RNN(3, 4, batch_first=True),
    "LSTM": lambda: torch.nn.LSTM(3, 4),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_gradients_equal_those_of_recurrent_modules(make):
    module = make()
    names, parameters = zip(*module.named_parameters(), strict=True)

    def function(weights, x):
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))[0]

    theta = 0.5 * normal(sum(p.numel() for p in parameters))
    assert_equals_eager(gradient_step(function, *(p.shape for p in parameters)), [theta], [normal(5, 6, 3)])


def elements(i, x, y):
    up, flag = x.abs() + 0.5, y > 0
    unary = x.cos(), x.sin(), x.erf(), x.expm1(), up.log(), up.log1p(), up.sqrt(), up.rsqrt(), up.reciprocal(), -x
    bounds = x.clamp_min(0.1), x.clamp_max(0.1), x.clamp(-0.1, 0.1), x.clamp(y.clamp_max(0), y.clamp_min(0))
    pairs = x.lerp(y, 0.3), x.lerp(y, up), F.mse_loss(x, y, reduction="none"), 3 - x, torch.rsub(x, y, alpha=2), x**3
    logic = flag.logical_xor(x > 0), x.logical_or(y), flag.logical_and(x > 0), x.logical_not(), flag | (x <= y), ~flag
    fills = x.new_full((3, 4), 2.0), torch.ones_like(x), x.new_zeros(3, 4), torch.full_like(x, 0.5), x.new_ones(3, 4)
    return torch.stack([*unary, *bounds, *pairs, *(z.float() for z in logic), *fills]).sum(0) + i, y


def sums(i, x, y):
    flag = x > 0
    rows = x.amin(1), x.amax(1), x.mean(1), x.argmax(1), flag.any(1), flag.all(1), flag.sum(1), x.norm()
    columns = x.sum(0), x.amax(0), x.mean(0), x.argmax(0)
    whole = x.max() + x.min() + x.flatten().argmax() + torch.dot(x[0], y[1]) + flag.all() + flag.any() + x.sum()
    return x + sum(z[..., None] for z in rows) + sum(columns) + whole, y


@pytest.mark.parametrize("step", [elements, sums])
def test_operations_with_a_formula_equal_pytorch_and_need_no_call_of_it(step):
    carry = normal(3, 4), normal(3, 4)
    assert_equals_eager(step, carry)
    assert write_loop(step, 2, (torch.tensor(0), *carry)).calls == ()


def in_place(x):
    x = x.clone()
    x[0].add_(1)
    x[1:].mul_(2)
    return x.relu_().masked_fill_(x > 2, 3.0).clamp_(-1, 2).sub_(x.sum())


def of_every_type(i, x, y, flag, whole):
    counted = (whole * 3 + i) // 2 - whole.clamp(1, 4) + flag.long()
    both = torch.where(flag & ~(x > 0) | (y != 0), x.maximum(y) - x.minimum(y), torch.full_like(x, 2.0) ** 0.5)
    powers = both.abs() ** 2 + both.abs() ** 1.5 + both.abs().reciprocal().clamp(max=2) + both.sign() * both.rsqrt()
    return in_place(powers), y + x.flip(0) + i.float(), (x > y) | flag, counted % 7


def test_numbers_flags_and_writing_in_place():
    x, y = normal(3, 4), normal(3, 4)
    assert_equals_eager(of_every_type, [x, y, x > 0.5, torch.arange(12).view(3, 4)])


SHAPES_IN_PLACE = {
    "transpose": lambda i, x: (x @ (2 * x).transpose_(0, 1),),
    "squeeze": lambda i, x: (x.mean(1, keepdim=True).squeeze_(1)[:, None] * x,),
    "of a view": lambda i, x: (x.tanh()[:].swapaxes_(0, 1) + x,),
}


@pytest.mark.parametrize("step", SHAPES_IN_PLACE.values(), ids=SHAPES_IN_PLACE)
def test_shapes_that_change_in_place(step):
    assert_equals_eager(step, [normal(3, 3)])


def corners(i, x, special, large):
    """Arguments and values that are rare."""
    special = special - torch.tensor([0.0, math.inf, 0.0])  # inf - inf is NaN
    out, index = torch.zeros(2, 3, 3), torch.tensor([[0, 2, 1]])
    torch.scatter_add(x, 0, index, x, out=out[1])
    row, rows = torch.zeros(2, 3), F.embedding(torch.tensor(2), x)
    torch.sum(x, 0, out=row[1])
    product = torch.addmm(torch.full((3, 3), math.nan), x, x, beta=0)
    sums = (x.abs() + 0.5).sum(dtype=torch.int64) + row[1] + out.sum(0)
    slope = torch.ops.aten.softplus_backward(x, x, 2.0, 0.1)
    return product + rows + sums + slope, 1 / special.abs() + special.argmax(), large.lerp(x[0], 1.0)


def test_rare_arguments_and_values():
    assert_equals_eager(
        corners, [normal(3, 3), torch.tensor([1.0, math.inf, -0.0]), torch.full((3,), 1e8)], counts=(1,)
    )


def copied(i, x, y, mean, var):
    mean.copy_(x[0])
    return (x + 1,)


WRITING = {
    "copy": copied,
    "statistics": lambda i, x, y, mean, var: (F.batch_norm(y, mean, var, training=True) + x,),
    "noise": lambda i, x, y, mean, var: (F.rrelu(x, training=True),),
}


@pytest.mark.parametrize("step", WRITING.values(), ids=WRITING)
def test_what_is_written_into_inputs_is_there_after_the_loop(step):
    carry, inputs = [normal(4, 3)], [normal(4, 3), normal(3), normal(3).abs()]
    loop = Compilation(step, carry, inputs).loop()
    after = []
    for run in (lambda *own: loop(torch.tensor(3), *carry, *own), lambda *own: eager(step, 3, carry, own)):
        torch.manual_seed(0)
        own = [x.clone() for x in inputs]
        after.append([*run(*own), *own])
    torch.testing.assert_close(*after)


CARRIES = {
    "exchanged": lambda i, x, y: (y, x),
    "both of one": lambda i, x, y: (x + y, x + y),
    "one twice": lambda i, x, y: (x + y,) * 2,
    "two views of one": lambda i, x, y: (lambda z: (z, z.t()))(x + y),
    "read after it is written": lambda i, x, y: (x * 2, y + x.t()),
    "read elsewhere": lambda i, x, y: (x + x.t(), y.sum(0) + y),
    "a view": lambda i, x, y: (x.t(), y[0].expand(3, 3)),
    "a constant": lambda i, x, y: (x + torch.tensor([1.0, 2.0, math.inf]), torch.ones(3, 3)),
}


@pytest.mark.parametrize("step", CARRIES.values(), ids=CARRIES)
def test_a_result_is_written_over_what_it_replaces_only_when_nobody_reads_that(step):
    assert_equals_eager(step, [normal(3, 3), normal(3, 3)])


def test_a_matrix_that_lies_by_columns_and_one_of_strides_zero():
    def step(i, x, a, b):
        return (x + a @ b + (a.t() @ a)[:3, :3] + b.expand(2, 4, 3).sum((0, 1)),)

    assert_equals_eager(step, [normal(3, 3)], [normal(4, 3).t(), normal(4, 1).expand(4, 3)])


def test_no_elements_and_a_loop_over_a_number():
    def step(i, x, total):
        return x, total * 0.5 + torch.cat([x, x]).sum()

    assert_equals_eager(step, [torch.zeros(0, 3), torch.tensor(3.0)])


def test_exponentials_are_accurate_at_all_sizes():
    special = [math.nan, math.inf, -math.inf, 0.0, 1e-20, -1e-8]
    x = torch.cat([torch.linspace(-110, 100, 20_001), torch.tensor(special)])
    (loop,) = (Compilation(lambda i, *x: (x[0].exp(), x[1].tanh(), x[2].sigmoid()), [x, x, x], []).loop(),)
    for actual, function in zip(loop(torch.tensor(1), x, x, x), (torch.exp, torch.tanh, torch.sigmoid), strict=True):
        torch.testing.assert_close(actual, function(x.double()).float(), rtol=4e-7, atol=2e-38, equal_nan=True)


def test_a_position_outside_of_a_tensor_is_an_error():
    positions = torch.zeros(4, dtype=torch.int64)
    loop = Compilation(lambda i, x, k: (x.index_select(0, k),), [normal(4)], [positions]).loop()
    for outside in (4, -1):
        with pytest.raises(IndexError, match="an element that its tensor does not have"):
            loop(torch.tensor(1), normal(4), torch.tensor([0, 1, outside, 2]))


def test_an_exception_of_an_operation_that_pytorch_does_comes_through():
    table = torch.eye(3).double()
    loop = Compilation(lambda i, x: (torch.linalg.cholesky(x),), [table], []).loop()
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        loop(torch.tensor(1), -table)


PARAMETER = torch.nn.Parameter(torch.zeros(3))
BRANCHES = {
    "item": (lambda i, x: (x * x.sum().item(),), "values of a tensor"),
    "if": (lambda i, x: (x if x.sum() > 0 else -x,), "values of a tensor"),
    "list": (lambda i, x: (x + sum(x.tolist()),), "tolist makes what follows depend on the values of a tensor"),
    "array": (lambda i, x: (x + torch.from_numpy(np.sort(x)),), "values of a tensor"),
    "equal": (lambda i, x: (x + torch.equal(x, 2 * x),), "values of a tensor"),
    "parameter": (lambda i, x: (x + PARAMETER,), "a trained parameter is read"),
    "mask": (lambda i, x: (x + x[x > 0].sum(),), "values of a tensor"),
    "half": (lambda i, x: (x.half().float(),), "no native code for tensors of torch.float16"),
    "number of the iteration": (lambda i, x: (x + torch.special.digamma(i),), "number of an iteration"),
}


@pytest.mark.parametrize(("step", "reason"), BRANCHES.values(), ids=BRANCHES)
def test_what_cannot_be_a_fixed_loop_is_refused_with_its_reason(step, reason, caplog):
    assert Compilation(step, [normal(3)], []).loop() is None
    assert "eager mode" in caplog.text
    assert reason in caplog.text


def test_random_numbers_are_those_of_the_program_and_writing_the_code_takes_none():
    def step(i, x):
        return (x + torch.rand_like(x),)

    state = torch.random.get_rng_state()
    loop = Compilation(step, [torch.zeros(3)], []).loop()
    assert torch.equal(torch.random.get_rng_state(), state)
    (actual,) = loop(torch.tensor(2), torch.zeros(3))
    torch.random.set_rng_state(state)
    torch.testing.assert_close(actual, torch.rand(3) + torch.rand(3))


def test_scipy_has_the_products_that_pytorch_may_lack(monkeypatch):
    monkeypatch.setattr(compilation.Path, "glob", lambda *_: [])
    compilation._products.cache_clear()
    try:
        x, y = normal(5, 4), normal(4, 3)
        for dtype in (torch.float32, torch.float64):
            assert_equals_eager(
                lambda i, z, x, y: (z + x @ y,), [torch.zeros(5, 3, dtype=dtype)], [x.to(dtype), y.to(dtype)]
            )
    finally:
        compilation._products.cache_clear()
