"""Products and norms of long vectors, against double precision."""

import pytest
import torch
from jaxtyping import TypeCheckError
from simulated_gpu import GPU, simulated

from rlzoo.optim.vectors import inner, norm


@pytest.mark.parametrize("length", [1, 1000, 2**16, 2**16 + 1, 2**25])
def test_products_and_norms_of_long_vectors_are_not_rounded_away(length):
    a, b = torch.randn(2, length, generator=torch.Generator().manual_seed(0)).abs()
    exact = float(torch.dot(a.double(), b.double()))
    assert inner(a, b) == pytest.approx(exact, rel=1e-5)
    assert norm(a) == pytest.approx(float(torch.linalg.vector_norm(a.double())), rel=1e-5)


def test_on_a_gpu_they_are_those_of_the_cpu():
    a, b = torch.randn(2, 3 * 2**16 + 5, generator=torch.Generator().manual_seed(0)).abs()
    with simulated():
        found = inner(a.to(GPU), b.to(GPU)), norm(a.to(GPU))
    assert found == pytest.approx((inner(a, b), norm(a)), rel=1e-5)


def test_a_shape_that_has_a_name_is_checked():
    with pytest.raises(TypeCheckError, match="norm"):
        norm(torch.ones(2, 2))
