import pytest
import torch

from rlzoo.lm.model import precision


@pytest.mark.parametrize(
    ("bfloat16", "chosen", "advised"),
    [
        (3.0, "float32", "bfloat16"),
        (8.0, "float32", None),
        (8.0, "bfloat16", None),
        (3.0, "bfloat16", None),
        (19.0, "bfloat16", "float32"),
        (19.0, "float32", None),
    ],
)
def test_the_precision_whose_products_are_faster_is_advised(monkeypatch, bfloat16, chosen, advised):
    products = []

    def milliseconds(product, number, repeat):
        products.append(product())
        return [99.0, bfloat16 if products[-1].dtype == torch.bfloat16 else 10.0]

    monkeypatch.setattr(precision.timeit, "repeat", milliseconds)
    line = precision.advice("cpu", chosen)
    ratio = f"{bfloat16 / 10:.1f} times as long as in float32"
    expected = f"matrix products in bfloat16 take {ratio} on this CPU: {advised} is faster"
    assert line == (None if advised is None else expected)
    assert len(products) == 2
    assert products[0].shape == products[1].shape


@pytest.mark.parametrize(
    ("device", "chosen", "expected"),
    [
        ("cpu", "float32", "this machine has a GPU, and the model is on the CPU: the device cuda is faster"),
        ("cuda", "float32", "matrix products in bfloat16 are faster on cuda, and take less memory"),
        ("cuda", "bfloat16", None),
    ],
)
def test_where_there_is_a_gpu_it_is_named_and_its_faster_precision(monkeypatch, device, chosen, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert precision.advice(device, chosen) == expected
