"""Rows of tokens: padding on either side, positions, likelihood, micro-batches."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import CONFIGS, PAD, lm_loss, make_lm
from torch import nn

from rlzoo.lm.model.padding import micro_batches, pack_right, pad, position_ids, summed_nll

KINDS = list(CONFIGS)


def logits(model, ids, attention):
    return model(
        input_ids=ids, attention_mask=attention.long(), position_ids=position_ids(attention), use_cache=False
    ).logits


# Rows of tokens


def test_padding_by_hand():
    ids, attention = pad([[5, 6, 7], [8], []], 9)
    assert ids.tolist() == [[5, 6, 7], [9, 9, 8], [9, 9, 9]]
    assert attention.tolist() == [[True, True, True], [False, False, True], [False, False, False]]
    ids, attention = pad([[5, 6, 7], [8]], 9, side="right")
    assert ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert attention.tolist() == [[True, True, True], [True, False, False]]


def test_no_rows_give_an_empty_tensor():
    ids, attention = pad([], 0)
    assert ids.shape == attention.shape == (0, 0)
    assert ids.dtype == torch.long


def test_position_ids_by_hand():
    attention = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0]]).bool()
    assert position_ids(attention).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 0, 0, 1, 1]]


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 3))
def test_packing_undoes_padding_on_either_side(rows, more):
    right = pad(rows, 0, "right")
    for side in ("left", "right"):
        ids, attention = pad(rows, 0, side)
        blank = torch.zeros(len(rows), more, dtype=torch.long)
        packed = pack_right(torch.cat([blank, ids, blank], 1), torch.cat([blank.bool(), attention, blank.bool()], 1))
        assert torch.equal(packed[0] * packed[1], right[0] * right[1])
        assert torch.equal(packed[1], right[1])


@pytest.mark.parametrize("kind", KINDS)
def test_row_alone_equals_the_row_padded(kind):
    model = make_lm(kind)
    row = [3, 1, 4, 1, 5]
    alone = logits(model, *pad([row], PAD))[0]
    for side, columns in (("left", slice(3, None)), ("right", slice(None, 5))):
        padded = logits(model, *pad([row, list(range(8))], PAD, side))[0, columns]
        torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


# The likelihood of text


class Bigram(nn.Module):
    """log π(b | a) is entry (a, b) of a known matrix."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table).log())

    def forward(self, input_ids, attention_mask, use_cache):
        return SimpleNamespace(logits=self.table[input_ids])


TABLE = [[0.1, 0.2, 0.7], [0.5, 0.25, 0.25], [0.3, 0.3, 0.4]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_loss_of_a_bigram_model_by_hand(side):
    ids, attention = pad([[0, 2, 1], [1, 0], [2]], 0, side)
    expected = -(math.log(0.7) + math.log(0.3) + math.log(0.5)) / 3
    assert lm_loss(Bigram(TABLE), ids, attention).item() == pytest.approx(expected, rel=1e-6)
    assert summed_nll(Bigram(TABLE), ids, attention).item() == pytest.approx(3 * expected, rel=1e-6)


def test_loss_without_a_token_to_predict_is_zero():
    loss = lm_loss(Bigram(TABLE), *pad([[2], [1]], 0))
    loss.backward()
    assert loss.item() == 0


def test_padding_has_no_gradient_but_the_same_token_at_the_end_has():
    """1 is padding and end of sequence at once."""
    model = Bigram(TABLE)
    lm_loss(model, *pad([[2, 0, 1], [2, 0]], 1, "right")).backward()
    gradient = model.table.grad
    assert (gradient[1] == 0).all()
    assert gradient[0, 1] < 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_loss_equals_its_definition(kind, side):
    model = make_lm(kind)
    rows = [[3, 1, 4, 1, 5, 9], [2, 6], [5, 3, 5]]
    total = 0.0
    for row in rows:
        logp = model(torch.tensor([row])).logits[0].log_softmax(-1)
        total -= sum(logp[t - 1, row[t]].item() for t in range(1, len(row)))
    assert lm_loss(model, *pad(rows, PAD, side)).item() == pytest.approx(total / 8, rel=1e-5)


# Micro-batches


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 100))
def test_micro_batches_hold_each_row_once_within_the_limit(widths, tokens):
    found = list(micro_batches(range(len(widths)), widths, tokens))
    assert sorted(i for batch in found for i in batch) == list(range(len(widths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(widths[i] for i in batch) <= tokens


def test_micro_batches_by_hand():
    assert list(micro_batches([0, 1, 2, 3], [3, 7, 2, 4], 8)) == [[1], [3, 0], [2]]
