"""Collectives, shares, and the life of a group of processes."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import short_runs
import torch
import torch.distributed as dist

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.objective import micro_batches


def in_each(count, check):
    """Runs `check` in processes that are one group. It may assert."""

    def work():
        with processes.joined():
            processes.ready(None)
            check()
            processes.all_reduce(0.0)  # so that none ends before the others are ready

    assert short_runs.in_processes(count, work) == [0] * count


def buffer(rows=6, steps=5):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return torch.from_numpy(rng.normal(size=shape))

    mask = torch.from_numpy(rng.random((rows, steps)) < 0.7)
    mask[1:3] = False
    no = torch.zeros_like(mask)
    obs, action, reward = normal(rows, steps + 1, 2), normal(rows, steps), normal(rows, steps)
    return Buffer(obs, action, reward, no, no, mask, advantage=normal(rows, steps), value=normal(rows, steps + 1))


def of_all(x):
    """The object `x` of each process."""
    every = [None] * processes.size()
    dist.all_gather_object(every, x)
    return every


def test_one_process_exchanges_nothing():
    x, whole = torch.arange(5.0), buffer()
    assert (processes.size(), processes.rank()) == (1, 0)
    assert processes.all_reduce_(x) is x
    assert processes.all_gather(x) == (x,)
    assert processes.gather_shares(x, 5) is x
    assert processes.all_reduce(5.0) == 5.0
    assert processes.broadcast(x) is x
    assert processes.share(7) == slice(0, 7)
    assert processes.rowwise(lambda rows: (rows,), whole) == (whole,)
    with processes.joined():
        assert processes.size() == 1


@pytest.mark.slow
def test_the_threads_of_a_group_end_with_it():
    """A thread that still runs when Python ends may abort the process, after a run that went well."""
    script = """
from pathlib import Path
from rlzoo.core.system import processes
with processes.joined():
    processes.ready(None)
    import torch.distributed.nn.functional  # as transformers does
threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
assert not any("gloo" in name for name in threads), threads
"""
    work = [sys.executable, "-c", script]
    assert short_runs.in_processes(2, lambda: subprocess.run(work, check=False).returncode) == [0, 0]


def test_shares_cover_everything():
    def check():
        shares = of_all([processes.share(n) for n in (0, 2, 7, 9)])
        for n, cuts in zip((0, 2, 7, 9), zip(*shares, strict=True), strict=True):
            assert [i for cut in cuts for i in range(n)[cut]] == list(range(n))
        with pytest.raises(ConfigError, match="num_envs must be a multiple of the 3 processes, got 7"):
            processes.own_rows(7, "num_envs")

    in_each(3, check)


def test_rows_of_every_dtype_are_gathered():
    def check():
        own, odd = processes.own_rows(4), torch.tensor([True, False, True, True])
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16):
            whole = torch.arange(24).reshape(4, 3, 2).to(dtype)
            gathered = processes.all_gather(odd[own], whole[own], odd[own])  # one message, whose parts are unaligned
            assert all(map(torch.equal, gathered, (odd, whole, odd)))
            across = whole.transpose(0, 1)
            assert torch.equal(processes.all_gather(across[:, own], dim=1)[0], across)
            here = torch.full_like(whole, processes.rank())
            processes.broadcast_(here)
            assert not here.any()
        assert processes.broadcast({"rank": processes.rank()}) == {"rank": 0}

    in_each(2, check)


def test_each_process_computes_its_own_rows():
    def check():
        whole, sizes = buffer(), []

        def fn(rows):
            sizes.append(rows.num_rows)
            return 2 * rows.reward, rows.mask.sum(1)

        reward, steps = processes.rowwise(fn, whole)
        assert torch.equal(reward, 2 * whole.reward)
        assert torch.equal(steps, whole.mask.sum(1))
        assert sizes == [2]

    in_each(3, check)


def test_sums_have_the_same_bits_everywhere():
    def check():
        for n in (1, 7, 10_003):
            own = torch.randn(n, generator=torch.Generator().manual_seed(processes.rank()))
            (every,) = processes.all_gather(own.reshape(1, -1))
            total = processes.all_reduce_(own)
            torch.testing.assert_close(total, every.sum(0), rtol=1e-5, atol=1e-6)
            assert len(set(of_all(total.numpy().tobytes()))) == 1

    in_each(3, check)


def test_a_vector_is_put_together_from_shares():
    def check():
        for n in (1, 7, 1000):
            own, expected = processes.share(n), torch.arange(n).float()
            vector = processes.gather_shares(expected[own], n)
            assert torch.equal(vector, expected if processes.rank() == 0 else expected[own])
            x = torch.zeros(n)
            x[own] = expected[own]
            processes.all_gather_shares_(x)
            assert torch.equal(x, expected)

    in_each(3, check)


@pytest.mark.parametrize("count", [2, 3])
def test_means_over_the_micro_batches_of_all_processes_add_up(count):
    """Of the whole buffer, of minibatches and of samples; some have fewer rows than there are processes."""

    def check():
        for context in (0, 1, 2):
            whole, rng, model = buffer().rows(context), np.random.default_rng(1), Line()
            for batch in [whole, *whole.minibatches(4, rng), whole.sample(0.1, rng), whole.sample(0.5, rng)]:
                for model.micro_batch_steps in (1, 3, None):
                    parts = list(micro_batches(model, batch))
                    own = range(batch.num_rows)[processes.share(batch.num_rows)]
                    assert sum(part.num_rows for part in parts) == len(own)
                    mean = processes.all_reduce(sum(float(part.mean(part.reward)) for part in parts))
                    assert mean == pytest.approx(float(batch.mean(batch.reward)), abs=1e-12)

    in_each(count, check)


class Line(ActorCritic):
    def __init__(self):
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))


def cubic(model, batch):
    x = batch.reward
    return batch.mean(model.weight[0] * x + model.weight[1] * x**2 + (model.weight[2] * x) ** 3)


def test_adam_keeps_a_share_of_the_moments_and_makes_the_same_steps(monkeypatch):
    monkeypatch.setattr("rlzoo.optim.adam._SMALL", 2)

    def steps(batch):
        model = Line()
        adam = Adam([model.weight])
        norms = [adam.minimize(cubic, model, batch, learning_rate=0.1, max_grad_norm=1.0) for _ in range(5)]
        return model.weight.detach().clone(), norms, adam

    weight, norms, alone = steps(buffer())

    def check():
        own_weight, own_norms, adam = steps(buffer())
        torch.testing.assert_close(own_weight, weight)
        assert own_norms == pytest.approx(norms)
        assert len(adam.m) == len(range(3)[processes.share(3)])
        state = adam.state_dict()
        if processes.rank() == 0:
            torch.testing.assert_close(state["v"], alone.v)
        adam.load_state_dict({"m": alone.m, "v": alone.v, "count": 5})
        torch.testing.assert_close(adam.m, alone.m[processes.share(3)])

    in_each(2, check)


def test_each_process_needs_a_gpu_of_its_own(monkeypatch):
    cuda = torch.device("cuda")
    processes.check_gpu(torch.device("cuda:1"))  # one process may take any
    monkeypatch.setattr(processes, "_group", processes._Group(0, 2))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    processes.check_gpu(cuda)
    with pytest.raises(ConfigError, match="device must be cuda, of which each process takes its own; got cuda:1"):
        processes.check_gpu(torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="each process needs a GPU of its own: there are 2 processes and 1 GPUs"):
        processes.check_gpu(cuda)
    processes.check_gpu(torch.device("cpu"))  # two processes on the CPU of a machine with one GPU


def test_small_moments_are_not_divided():
    def check():
        adam = Adam([Line().weight])
        assert len(adam.m) == 3
        assert torch.equal(adam.state_dict()["v"], adam.v)
        with processes.apart():
            assert (processes.size(), processes.share(7)) == (1, slice(0, 7))
        assert processes.size() == 2

    in_each(2, check)


def test_a_process_without_rows_of_a_minibatch_makes_the_same_step():
    def stepped(kind):
        model = Line()
        row = buffer().map(lambda x: x[:1])
        kind([model.weight]).minimize(cubic, model, row, learning_rate=0.1)
        return model.weight.detach()

    expected = stepped(Adam)

    def check():
        for kind in (Adam, lambda parameters: FastAdam(Adam(parameters))):
            torch.testing.assert_close(stepped(kind), expected)

    in_each(2, check)


def ended(pids, patience=10.0):
    """Whether all of these processes end within some seconds."""
    deadline = time.monotonic() + patience

    def runs(pid):
        try:  # the state follows the name, which is in parentheses; nobody may wait for an orphan
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(runs, pids))


@pytest.mark.slow
def test_workers_end_with_their_launcher(tmp_path):
    """One that works, and one that waits for the other."""
    (tmp_path / "worker.py").write_text(f"""
import os, time
from pathlib import Path
from rlzoo.core.system import processes
with processes.joined():
    processes.ready(None)
    Path({str(tmp_path)!r}, str(os.getpid())).touch()
    processes.next_name() if processes.rank() else time.sleep(300)
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen([*command, tmp_path / "worker.py"]) as launcher:
        while launcher.poll() is None and len(pids := [int(x.name) for x in tmp_path.glob("[0-9]*")]) < 2:
            time.sleep(0.05)
        launcher.kill()
    assert len(pids) == 2
    assert ended(pids)
