"""Axes of published tensors: what is read where, and that writing is the inverse."""

import numpy as np
import pytest

from transformer.interop.layout import layout_of

QUERY = 'decoder/layer_0/self_attention/query'
SHAPES = {'kernel': (5, 3, 2), 'bias': (3, 2)}  # [D, N, H], [N, H]


@pytest.mark.parametrize('leaf', SHAPES)
@pytest.mark.parametrize(
    ('axes', 'parts'),
    [
        (None, 1),
        ('embed (part heads head_dim)', 3),
        ('(heads part head_dim) embed', 3),
        ('(part heads head_dim) embed', 2),
    ],
)
def test_reading_undoes_writing(leaf, axes, parts):
    rng = np.random.default_rng(0)
    ours = [rng.standard_normal(SHAPES[leaf]) for _ in range(parts)]
    layout = layout_of(f'{QUERY}/{leaf}', SHAPES[leaf], axes, parts)
    tensor = layout.tensor(ours)
    assert tensor.shape == layout.shape
    assert tensor.size == sum(part.size for part in ours)
    for part, expected in enumerate(ours):
        np.testing.assert_array_equal(layout.parameter(tensor, part), expected)


def test_a_linear_layer_is_published_transposed():
    tensor = np.arange(30).reshape(6, 5)  # [N * H, D]
    layout = layout_of(f'{QUERY}/kernel', (5, 3, 2), None, 1)
    assert layout.shape == (6, 5)
    np.testing.assert_array_equal(layout.parameter(tensor, 0), tensor.T.reshape(5, 3, 2))


def test_a_table_is_published_as_it_is():
    layout = layout_of('embedding/table', (7, 5), None, 1)
    tensor = np.arange(35).reshape(7, 5)
    np.testing.assert_array_equal(layout.parameter(tensor, 0), tensor)


def test_fused_by_head_is_not_fused_by_part():
    """BLOOM's rows are head by head, GPT-2's columns part by part."""
    tensor = np.arange(3 * 2 * 2)  # 2 heads of 2, or 3 parts of 4
    by_head = layout_of(f'{QUERY}/bias', (2, 2), '(heads part head_dim) embed', 3)
    by_part = layout_of(f'{QUERY}/bias', (2, 2), 'embed (part heads head_dim)', 3)
    np.testing.assert_array_equal(by_head.parameter(tensor, 1), [[2, 3], [8, 9]])
    np.testing.assert_array_equal(by_part.parameter(tensor, 1), [[4, 5], [6, 7]])


def test_a_part_may_be_an_axis_of_its_own():
    layout = layout_of('head/bias', (4,), 'part vocab', 1)
    assert layout.shape == (1, 4)
    np.testing.assert_array_equal(layout.parameter(np.arange(4)[None], 0), np.arange(4))
