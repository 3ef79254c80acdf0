"""Matrix products of a fixed number of rows: the same numbers, whatever shares the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.worker import in_fixed_rows

WEIGHT = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
linear = torch.nn.functional.linear


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
def test_same_as_the_plain_product_for_any_number_of_rows(rows):
    x, bias = torch.randn(rows, 16), torch.randn(24)
    torch.testing.assert_close(in_fixed_rows(linear, 8)(x, WEIGHT, bias), linear(x, WEIGHT, bias))


def test_every_product_has_the_same_shape():
    shapes = []

    def recorded(x, weight, bias):
        shapes.append(tuple(x.shape))
        return linear(x, weight, bias)

    in_fixed_rows(recorded, 8)(torch.randn(19, 16), WEIGHT, None)
    assert shapes == [(8, 16)] * 3


def test_leading_dimensions_are_kept():
    assert in_fixed_rows(linear, 8)(torch.randn(2, 5, 16), WEIGHT, None).shape == (2, 5, 24)


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(0, 59), st.integers(0, 2**31))
def test_a_row_does_not_depend_on_the_others(rows, which, seed):
    """Bit for bit, alone or among others, for a product that is only given fixed shapes."""
    which %= rows
    x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))
    fixed = in_fixed_rows(lambda a, w, b: (a.unsqueeze(1) * w).sum(-1), 8)
    alone = fixed(x[which : which + 1], WEIGHT, None)
    assert torch.equal(fixed(x, WEIGHT, None)[which], alone[0])
