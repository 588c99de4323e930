"""The simulated GPU of the other tests: it computes what the CPU computes, and refuses what a GPU refuses."""

import pytest
import torch
from simulated_gpu import GPU, simulated
from torch import nn


def both():
    """A vector on the simulated GPU, and the same on the CPU."""
    x = torch.tensor([3.0, -1.0, 2.0])
    return x.to(GPU), x


def test_values_and_gradients_are_those_of_the_cpu():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(5, 4)
    plain(x).square().sum().backward()
    expected = [p.grad.clone() for p in plain.parameters()]
    with simulated():
        moved = plain.to(GPU)
        moved.zero_grad()
        moved(x.to(GPU)).square().sum().backward()
        assert all(p.device.type == p.grad.device.type == GPU for p in moved.parameters())
        found = [p.grad.cpu() for p in moved.parameters()]
    assert all(map(torch.equal, found, expected))


def test_tensors_of_two_devices_do_not_mix():
    with simulated():
        x, other = both()
        for mixed in (lambda: x + other, lambda: other.add_(x), lambda: torch.cat([x, other]), lambda: x[other.long()]):
            with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
                mixed()
        assert (x * torch.tensor(2.0)).tolist() == [6.0, -2.0, 4.0]  # a number may be on the CPU


def test_a_generator_draws_numbers_for_its_own_device():
    with simulated():
        for generator, x in ((torch.Generator(), both()[0]), (torch.Generator(GPU), both()[1])):
            with pytest.raises(RuntimeError, match="draws numbers on"):
                x.uniform_(generator=generator)
        first, second = (both()[0].uniform_(generator=torch.Generator(GPU).manual_seed(0)) for _ in range(2))
        assert torch.equal(first.cpu(), second.cpu())


@pytest.mark.parametrize(
    ("waits", "operation"),
    [
        (["_local_scalar_dense"], lambda x, _: float(x[0])),
        (["_local_scalar_dense"], lambda x, _: bool((x > 0).all())),
        (["_to_copy"], lambda x, _: x.cpu()),
        (["_to_copy"], lambda x, _: x.tolist()),
        (["_to_copy"], lambda _, other: other.to(GPU)),
        (["copy_"], lambda x, other: x.copy_(other)),
        (["copy_"], lambda x, other: other.copy_(x)),
        (["_to_copy"], lambda *_: torch.tensor([1, 2], device=GPU)),
        (["index"], lambda x, _: x[x > 0]),
        (["nonzero"], lambda x, _: x.nonzero()),
        ([], lambda _, other: other.to(GPU, non_blocking=True)),
        ([], lambda x, _: x.masked_fill(x > 0, 0.0).cumsum(0)[1:].sum()),
        ([], lambda x, _: x.copy_(x + 1)),
        ([], lambda *_: torch.arange(3, device=GPU)),
        ([], lambda _, other: float(other.sum())),
    ],
)
def test_it_notes_what_the_host_waits_for(waits, operation):
    with simulated() as gpu:
        x, other = both()
        gpu.waits.clear()
        operation(x, other)
        assert gpu.waits == waits
