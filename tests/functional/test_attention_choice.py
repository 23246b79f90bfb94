"""Kernels of accelerators: refused by name, chosen where right, and documented so."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BIAS, KEYS, SINKS, SLOPES, B, N, alibi, inputs, pretend

from transformer.functional import accelerators, attention
from transformer.functional.accelerators import KERNELS, refused
from transformer.functional.attention import (
    IMPLEMENTATIONS,
    best_implementation,
    dot_product_attention,
)


def captured(monkeypatch, arrays, **arguments):
    """The `AttentionArguments` that implementations get."""
    seen = []

    def capture(arguments):
        seen.append(arguments)
        return arguments.query, None

    arguments.pop('return_residual', None)
    monkeypatch.setitem(IMPLEMENTATIONS, 'xla', capture)
    jax.eval_shape(lambda *x: dot_product_attention(*x, implementation='xla', **arguments), *arrays)
    return seen[0]


@pytest.mark.parametrize(('name', 'device'), [('cudnn', 'an NVIDIA GPU'), ('pallas', 'a TPU')])
def test_another_device_is_named(name, device):
    message = rf"^implementation='{name}' needs {device}, and this process computes on cpu: .*None"
    with pytest.raises(ValueError, match=message) as caught:
        dot_product_attention(*inputs(), implementation=name)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('name', KERNELS)
def test_an_argument_that_is_refused_is_named(name, monkeypatch):
    pretend(monkeypatch, name)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs(v=8)]
    for arguments, words in (
        ({'bias': BIAS}, 'takes no bias'),
        ({'dropout_rate': 0.1, 'dropout_key': KEYS}, 'dropout_rate'),
        ({'sinks': SINKS}, 'sinks'),
        ({'return_residual': True}, 'returns no residual'),
    ):
        with pytest.raises(ValueError, match=rf"^implementation='{name}' .*{words}.*'blockwise'"):
            dot_product_attention(*arrays, implementation=name, **arguments)


def test_weights_come_from_the_plain_implementation_whatever_was_chosen():
    for name in KERNELS:
        output, weights = dot_product_attention(*inputs(), implementation=name, return_weights=True)
        np.testing.assert_array_equal(output, dot_product_attention(*inputs()))
        assert weights.shape == (B, N, 6, 6)


def shapes(t=256, s=256, b=2, h=64, v=None, dtype=jnp.bfloat16):
    sizes = (b, t, 4, h), (b, s, 2, h), (b, s, 2, v or h)
    return [jax.ShapeDtypeStruct(size, dtype) for size in sizes]


CHOICES = {  # arrays, arguments: chosen on a TPU, on an NVIDIA GPU
    'causal': (shapes(), {'is_causal': True}, 'pallas', 'cudnn'),
    'short': (shapes(t=127), {}, 'xla', 'xla'),
    'one query': (shapes(t=1, s=2**20), {}, 'xla', 'xla'),
    'float32': (shapes(dtype=jnp.float32), {}, 'pallas', 'xla'),
    'large heads': (shapes(h=256), {}, 'pallas', 'xla'),
    'mask': (shapes(), {'mask': np.ones((256, 256), bool)}, 'xla', 'cudnn'),
    'segments': (shapes(), {'query_segment_ids': np.ones(256, int)}, 'pallas', 'cudnn'),
    'long and dropped': (
        shapes(t=2**13, s=2**13),
        {'dropout_rate': 0.1, 'dropout_key': KEYS},
        'blockwise',
        'blockwise',
    ),
    'a large mask': (
        shapes(t=2**15, s=2**14),
        {'key_value_seq_lengths': np.array([1, 2])},
        'pallas',
        'blockwise',
    ),
    'residual': (shapes(), {'return_residual': True}, 'xla', 'xla'),
    'positions': (
        shapes(),
        {'is_causal': True, 'query_positions': np.arange(256)},
        'xla',
        'cudnn',
    ),
}


@pytest.mark.parametrize('name', CHOICES)
def test_the_automatic_choice_takes_what_can_compute_it(name, monkeypatch):
    arrays, arguments, *expected = CHOICES[name]
    residual = 'return_residual' in arguments
    captured_arguments = captured(monkeypatch, arrays, **arguments)
    for backend, implementation in zip(('tpu', 'gpu'), expected, strict=True):
        with monkeypatch.context() as context:
            context.setattr(jax, 'default_backend', lambda backend=backend: backend)
            if backend == 'gpu':
                pretend(context, 'cudnn')
            assert best_implementation(captured_arguments, residual) == implementation


@pytest.mark.parametrize(
    ('length', 'rows', 'arguments', 'expected'),
    [
        (511, 1, {}, 'xla'),
        (512, 1, {}, 'blockwise'),
        (512, 1, {'is_causal': True}, 'xla'),
        (512, 17, {'is_causal': True}, 'blockwise'),
        (1024, 1, {'is_causal': True}, 'blockwise'),
    ],
)
def test_on_a_cpu_strips_put_off_the_change_to_blocks(
    length, rows, arguments, expected, monkeypatch
):
    arrays = shapes(length, length, rows, dtype=jnp.float32)
    assert best_implementation(captured(monkeypatch, arrays, **arguments), False) == expected


def test_a_gpu_without_cudnn_takes_the_other_implementations(monkeypatch):
    arguments = captured(monkeypatch, shapes(), is_causal=True)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')  # of a CPU's platform_version
    assert best_implementation(arguments, False) == 'xla'


# The table of docs/attention.md.

DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'attention.md'
DROPOUT = {'dropout_rate': 0.1, 'dropout_key': KEYS}
EVEN_IDS, ODD_IDS = np.ones(256, int), np.ones(255, int)
ROWS = {
    'bfloat16': (shapes(), {}),
    'float16': (shapes(dtype=jnp.float16), {}),
    'float32': (shapes(dtype=jnp.float32), {}),
    'float64': (shapes(dtype=jnp.float64), {}),
    'head_dim up to 128, a multiple of 8': (shapes(h=128), {}),
    'head_dim of another size': (shapes(h=192), {}),
    "value's head_dim another": (shapes(v=32), {}),
    '`bias`, dense': (shapes(), {'bias': np.zeros((256, 256), np.float32)}),
    '`bias`, structured': (shapes(), {'bias': (alibi, SLOPES)}),
    '`mask`': (shapes(), {'mask': np.ones((256, 256), bool)}),
    '`scale`': (shapes(), {'scale': 0.3}),
    '`is_causal`': (shapes(), {'is_causal': True}),
    '`is_causal`, other lengths': (shapes(t=300), {'is_causal': True}),
    '`local_window_size`': (shapes(), {'local_window_size': (5, 2)}),
    '`query_positions`': (shapes(), {'query_positions': np.arange(256)}),
    '`query_positions` with `is_causal` or a window': (
        shapes(),
        {'query_positions': np.arange(256), 'is_causal': True},
    ),
    '`query_segment_ids`': (shapes(), {'query_segment_ids': EVEN_IDS}),
    '`query_segment_ids`, odd lengths': (shapes(255, 255), {'query_segment_ids': ODD_IDS}),
    '`key_value_seq_lengths`': (shapes(), {'key_value_seq_lengths': np.array([3, 5])}),
    '`softcap`': (shapes(), {'softcap': 30.0}),
    '`sinks`, float32': (shapes(dtype=jnp.float32), {'sinks': SINKS}),
    '`sinks`, bfloat16': (shapes(), {'sinks': SINKS}),
    '`dropout_rate`': (shapes(), DROPOUT),
    '`return_residual`': (shapes(), {'return_residual': True}),
}


def table():
    """Cells of the table of arguments in the documentation, by row and column."""
    text = DOCS.read_text()
    lines = text[text.index('| argument |') :].split('\n\n')[0].splitlines()
    header, _, *lines = ([cell.strip() for cell in line.strip('|').split('|')] for line in lines)
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}


def test_the_documented_table_is_what_the_code_does(monkeypatch):
    documented = table()
    assert list(documented) == list(ROWS)
    for row, (arrays, arguments) in ROWS.items():
        with jax.enable_x64(row == 'float64'):
            found = captured(monkeypatch, arrays, **arguments)
        cells = {'xla': 'yes', 'blockwise': 'yes'}
        for name in KERNELS:
            reason = refused(name, found, 'return_residual' in arguments)
            # One line that goes on from the implementation's name.
            assert reason is None or re.fullmatch(r'(takes|drops|returns) [^\n:]+', reason)
            dense = name == 'cudnn' and reason is None and accelerators.needs_mask(found)
            cells[name] = 'no' if reason else 'as a mask' if dense else 'yes'
        assert documented[row] == cells, row


def test_every_implementation_is_listed():
    assert {'xla', 'blockwise', *KERNELS} == set(attention.IMPLEMENTATIONS)
    assert set(next(iter(table().values()))) == set(attention.IMPLEMENTATIONS)
