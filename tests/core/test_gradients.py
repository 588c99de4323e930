"""The gradient of a sum of terms as one vector."""

import pytest
import torch
from torch import nn

from rlzoo.core.gradients import FlatGradient, Place


class Rows(torch.autograd.Function):
    """Rows of a table, whose gradient goes to its place."""

    @staticmethod
    def forward(ctx, table, row):
        ctx.table, ctx.row = table, row
        return table[row]

    @staticmethod
    def backward(ctx, grad):
        place = Place(ctx.table)
        place.put_rows(ctx.row, grad)
        return place.result, None


class Halves(torch.autograd.Function):
    """x·tableᵀ, whose gradient in the table is put in its place in two parts."""

    @staticmethod
    def forward(ctx, x, table):
        ctx.x, ctx.table = x, table
        return x @ table.t()

    @staticmethod
    def backward(ctx, grad):
        place, middle = Place(ctx.table), len(ctx.table) // 2
        for part in (slice(0, middle), slice(middle, None)):
            place.put(grad[:, part].t() @ ctx.x, part)
        return grad @ ctx.table, place.result


@pytest.fixture
def parameters():
    torch.manual_seed(0)
    shapes = (5, 3), (3,), (2, 2)
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]


ROW = torch.tensor([[1, 4, 1], [0, 1, 3]])


def tied(table, bias, _unused):
    """Reads rows of the table, and multiplies by it."""
    return Halves.apply(torch.tanh(Rows.apply(table, ROW) + bias).flatten(0, 1), table).square().sum()


def tied_by_torch(table, bias, _unused):
    return (torch.tanh(table[ROW] + bias).flatten(0, 1) @ table.t()).square().sum()


def plain(table, bias, _unused):
    return (table * bias).sin().sum()


def untied(table, _bias, _unused):
    return Rows.apply(table, ROW).exp().sum()


def untied_by_torch(table, _bias, _unused):
    return table[ROW].exp().sum()


def gradient(terms, parameters):
    total = sum(term(*parameters) for term in terms)
    grads = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([g.reshape(-1) for g in grads])


@pytest.mark.parametrize("terms", [[tied], [untied], [plain, tied], [tied, plain], [untied, tied], [tied, untied]])
def test_the_vector_is_the_gradient_of_the_sum(terms, parameters):
    flat = FlatGradient(parameters, torch.full((22,), torch.nan, dtype=torch.float64))
    names = {tied: tied_by_torch, untied: untied_by_torch, plain: plain}
    expected = gradient([names[term] for term in terms], parameters)
    for _ in range(2):  # the second sum finds the first one in its memory
        flat.clear()
        for term in terms:
            flat.add_from(term(*parameters))
        torch.testing.assert_close(flat.vector, expected, rtol=1e-12, atol=1e-12)
    assert all(p.grad is None for p in parameters)


@pytest.mark.parametrize("given_first", [True, False])
def test_given_gradients_and_those_of_autograd_add_up(given_first, parameters):
    flat = FlatGradient(parameters, torch.zeros(22, dtype=torch.float64))
    for given in (given_first, not given_first):
        if given:
            flat.add([torch.full_like(p, 2.0) for p in parameters])
        else:
            flat.add_from(tied(*parameters))
    expected = gradient([tied_by_torch], parameters) + 2
    torch.testing.assert_close(flat.vector, expected, rtol=1e-12, atol=1e-12)


def test_outside_of_a_sum_the_functions_hand_their_gradients_to_autograd(parameters):
    torch.testing.assert_close(gradient([tied, plain], parameters), gradient([tied_by_torch, plain], parameters))


def test_an_error_in_a_backward_pass_ends_the_sum(parameters):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no gradient")

    flat = FlatGradient(parameters, torch.zeros(22, dtype=torch.float64))
    with pytest.raises(ValueError, match="no gradient"):
        flat.add_from(Fails.apply(parameters[0]).sum())
    torch.testing.assert_close(gradient([tied], parameters), gradient([tied_by_torch], parameters))
    flat.clear()
    flat.add_from(tied(*parameters))
    torch.testing.assert_close(flat.vector, gradient([tied_by_torch], parameters))
