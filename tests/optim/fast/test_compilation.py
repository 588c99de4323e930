import logging
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rlzoo.core.system.errors import ConfigError
from rlzoo.optim.fast import compilation
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


def double(i, x):
    return (2 * x,)


def doubled(x=None):
    """A loop over `double`."""
    return Compilation(double, [torch.ones(2) if x is None else x], [], lambda: "key").loop()


@pytest.fixture(autouse=True)
def nothing_said():
    compilation._say.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("RLZOO_CACHE", str(directory))
    return directory


@pytest.fixture
def package(cache):
    cache.mkdir(mode=0o700)
    path = cache / "step.pt2"
    path.write_bytes(b"not a package")
    path.chmod(0o600)
    return path


def no_load(package):
    pytest.fail(f"{package} was loaded")


def test_the_name_of_a_package_depends_on_the_inputs_and_the_key_but_not_on_values():
    x = torch.zeros(4, 6)
    names = {
        compilation._digest(example, key)
        for example, key in [
            ((x,), "a"),
            ((torch.ones(4, 6),), "a"),
            ((x,), "b"),
            ((x, x), "a"),
            ((x.double(),), "a"),
            ((x.long(),), "a"),
            ((torch.zeros(6, 4),), "a"),
            ((torch.zeros(6, 4).t(),), "a"),
            ((torch.zeros(24),), "a"),
        ]
    }
    assert len(names) == 8


def test_the_name_of_a_package_depends_on_where_and_how_it_runs(monkeypatch):
    names = {compilation._digest((), "a")}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    names.add(compilation._digest((), "a"))
    monkeypatch.setattr(compilation, "_processor", lambda: "another")
    names.add(compilation._digest((), "a"))
    monkeypatch.setattr(torch, "__version__", "0")
    names.add(compilation._digest((), "a"))
    assert len(names) == 4


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/someone")
    assert compilation.cache_directory() == Path("/own")
    monkeypatch.delenv("RLZOO_CACHE")
    assert compilation.cache_directory() == Path("/xdg/rlzoo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compilation.cache_directory() == Path("/home/someone/.cache/rlzoo")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # a user without an entry
    with pytest.raises(ConfigError, match="no home directory for a cache; set RLZOO_CACHE to a directory"):
        compilation.cache_directory()


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


def test_a_failed_compilation_is_reported_by_the_line_of_its_exception(cache, monkeypatch, caplog):
    failing = [sys.executable, "-c", "raise RuntimeError('cannot lower\\n\\nUse a log to see more.')"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, own=subprocess.Popen, **options: own(failing, **options))
    assert doubled() is None
    (record,) = caplog.records
    assert record.getMessage().endswith(": RuntimeError: cannot lower")
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_modules_in_the_current_directory_hide_none_of_pythons(cache, tmp_path, monkeypatch, caplog):
    def untraceable(i, x):
        import beside

        raise RuntimeError(beside.TEXT)

    (tmp_path / "copy.py").write_text("raise RuntimeError('the wrong module')")
    (tmp_path / "beside.py").write_text("TEXT = 'cannot be traced'")
    monkeypatch.chdir(tmp_path)
    assert Compilation(untraceable, [torch.ones(2)], [], lambda: "key").loop() is None
    assert caplog.messages[-1].endswith(": RuntimeError: cannot be traced")


def test_a_compilation_that_nobody_waits_for_ends_with_its_process(cache, monkeypatch):
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = []

    def start(command, own=subprocess.Popen, **options):
        started.append(own(sleeping, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    compilation_ = Compilation(double, [torch.ones(2)], [], lambda: "key")
    del compilation_
    assert started[0].wait(timeout=10) != 0
    assert list(cache.iterdir()) == []


def test_only_tensors_on_the_cpu_are_compiled(cache, caplog):
    assert doubled(torch.ones(2, device="meta")) is None
    assert "only updates on the CPU" in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_package_that_others_may_write_is_never_loaded(package, mode, monkeypatch, caplog):
    monkeypatch.setattr(compilation, "_load", no_load)
    package.chmod(mode)
    assert compilation._load_cached(package) is None
    assert not package.exists()
    assert "others may write to it" in caplog.text


def test_a_package_of_another_user_is_never_loaded(package, monkeypatch, caplog):
    monkeypatch.setattr(compilation, "_load", no_load)
    owner = package.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert compilation._load_cached(package) is None
    assert "belongs to another user" in caplog.text


def test_a_link_in_the_cache_is_never_followed(package, monkeypatch):
    monkeypatch.setattr(compilation, "_load", no_load)
    link = package.with_name("link.pt2")
    link.symlink_to(package)
    assert compilation._load_cached(link) is None
    assert not link.is_symlink()
    assert package.exists()


def test_a_package_that_cannot_be_loaded_here_is_kept(package, monkeypatch, caplog):
    """The temporary directory, into which the loader unpacks it, may be missing, or of a disk that runs no code."""
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("model.so", "code")
    monkeypatch.setattr(compilation, "_digest", lambda *_: package.stem)
    assert doubled() is None
    assert "step.pt2 cannot be loaded: " in caplog.text
    assert "compiling again" not in caplog.text
    assert package.exists()


@pytest.mark.parametrize("content", [b"", b"not a package"])
def test_a_damaged_package_is_deleted(package, content, caplog):
    package.write_bytes(content)
    assert compilation._load_cached(package) is None
    assert not package.exists()
    assert "is damaged" in caplog.text


def test_a_cache_directory_that_others_may_write_is_not_used(cache, caplog):
    cache.mkdir()
    cache.chmod(0o777)
    assert doubled() is None
    assert str(cache) in caplog.text
    assert "RLZOO_CACHE" in caplog.text
    assert list(cache.iterdir()) == []


def test_arguments_unlike_the_example_are_refused():
    run = compilation._with_check(lambda tensors: list(double(0, tensors[0])), (torch.ones(2, 3), torch.tensor(1.0)))
    (result,) = run(torch.full((2, 3), 2.0), torch.tensor(5.0))
    assert result.tolist() == [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    with pytest.raises(ValueError, match="compiled for 2 tensors, called with 1"):
        run(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"tensor 0 was compiled for shape \(2, 3\).* with shape \(1, 3\)"):
        run(torch.ones(1, 3), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"tensor 1 .*float32.*; called with .*int64"):
        run(torch.ones(2, 3), torch.tensor(1))
    with pytest.raises(ValueError, match=r"stride \(3, 1\).*stride \(1, 2\)"):
        run(torch.ones(3, 2).t(), torch.tensor(1.0))


def test_outputs_share_no_memory_with_inputs():
    x = torch.arange(6.0)
    same, view, new = compilation._without_aliases(lambda x: (x, x.view(2, 3), x + 1))(x)
    assert torch.equal(same, x)
    assert torch.equal(view, x.view(2, 3))
    assert torch.equal(new, x + 1)
    assert x.data_ptr() not in {same.data_ptr(), view.data_ptr(), new.data_ptr()}


def test_products_of_inputs_alone_are_known_before_the_loop():
    def step(i, x, weight, obs):
        hidden = torch.tanh(obs @ weight)
        return (x + hidden.t() @ (hidden @ x) + (weight + 1).sum() + i,)

    def in_place(i, x, weight, obs):
        return ((obs @ weight).relu_() @ x + i,)

    example = torch.tensor(1), torch.ones(3), torch.ones(2, 3), torch.ones(4, 2)
    traced = make_fx(step)(*example)
    (hidden,) = compilation._products_of_inputs(traced, 1, example)
    assert str(hidden.target) == "aten.tanh.default"
    known = {hidden: torch.zeros(4, 3)}
    assert torch.equal(torch.fx.Interpreter(traced).run(*example, initial_env=known)[0], torch.full((3,), 14.0))
    assert compilation._products_of_inputs(make_fx(in_place)(*example), 1, example) == []


def eager(inputs, count):
    carry = inputs[:CARRIED]
    for i in range(count):
        carry = ppo_step(torch.tensor(i), *carry, *inputs[CARRIED:])
    return carry


@pytest.mark.slow
def test_a_loop_compiled_once_equals_eager_steps_and_is_loaded_from_then_on(
    cache, tmp_path, monkeypatch, capfd, caplog
):
    monkeypatch.chdir(tmp_path)
    inputs = ppo_inputs()
    before = [tensor.clone() for tensor in inputs]
    caplog.set_level(logging.INFO)
    both = [Compilation(ppo_step, inputs[:CARRIED], inputs[CARRIED:], lambda: "ppo") for _ in range(2)]
    loops = [compilation.loop() for compilation in both]
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    (package,) = cache.glob("*.pt2")
    assert {path.suffix for path in cache.iterdir()} <= {".pt2", ".lock"}
    assert os.listdir(tmp_path) == ["cache"]
    assert stat.S_IMODE(package.stat().st_mode) == 0o600

    for count in (0, 1, 5):
        for loop in loops:
            for actual, expected in zip(loop(torch.tensor(count), *inputs), eager(inputs, count), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    first, second = (loops[0](torch.tensor(5), *inputs) for _ in range(2))
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))

    intact = package.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("compiled again"))
        loaded = Compilation(ppo_step, inputs[:CARRIED], inputs[CARRIED:], lambda: "ppo").loop()
    assert all(torch.equal(a, b) for a, b in zip(loaded(torch.tensor(5), *inputs), first, strict=True))

    flipped = bytearray(intact)
    flipped[len(intact) // 2] ^= 0xFF
    for damaged in (intact[: len(intact) // 2], bytes(flipped)):
        package.write_bytes(damaged)
        assert compilation._load_cached(package) is None

    package.write_bytes(intact)
    script = (
        "import sys\nfrom pathlib import Path\nfrom rlzoo.optim.fast import compilation\n"
        "assert compilation._load_cached(Path(sys.argv[1])) is not None\n"
        "assert 'torch._inductor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, package], check=True, cwd=Path(__file__).parents[3])
