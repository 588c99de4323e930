"""The checks of shapes see each call whose types and shapes no earlier call had."""

import pytest
import shape_checks
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor


def test_new_shapes_and_results_are_checked_and_others_pass():
    results = iter([torch.zeros(2), torch.zeros(2), torch.zeros(3)])
    calls = []

    @shape_checks.jaxtyped(typechecker=shape_checks.check)
    def added(x: Float[Tensor, "N"], y: Float[Tensor, "N"], name: str = "") -> Float[Tensor, "N"]:
        calls.append(name)
        return next(results)

    x = torch.zeros(2)
    for name in ("first", "second"):
        assert added(x, y=x, name=name).shape == x.shape
    with pytest.raises(TypeCheckError, match="return value"):
        added(x, y=x, name="third")
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1)):
        with pytest.raises(TypeCheckError, match="parameters"):
            added(x, y=wrong, name="never")
    assert calls == ["first", "second", "third"]
