"""What the tests of attention share: inputs, the equations in float64, and every feature in use."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.functional.accelerators import KERNELS
from transformer.functional.attention import dot_product_attention
from transformer.functional.attention_arguments import MASKED

B, T, S, N, K, H, V = 2, 6, 6, 4, 2, 8, 5
KEYS = jax.random.split(jax.random.key(5), B)


def inputs(t=T, s=S, k=K, v=V, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    shapes = (B, t, N, H), (B, s, k, H), (B, s, k, v)
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def compiled(query, key, value, **arguments):
    """As one program: for shapes of their own, whose operations are not compiled yet."""
    return jax.jit(lambda *qkv: dot_product_attention(*qkv, **arguments))(query, key, value)


def gradients(query, key, value, **arguments):
    def loss(*qkv):
        return (dot_product_attention(*qkv, **arguments) ** 2).sum()

    return jax.jit(jax.grad(loss, (0, 1, 2)))(query, key, value)


def pretend(monkeypatch, name, **changes):
    """That the device of a kernel is here."""
    kernel = KERNELS[name]._replace(is_here=lambda: True, **changes)
    monkeypatch.setitem(KERNELS, name, kernel)


def reference(query, key, value, mask=True, bias=0.0, scale=None, softcap=None, sinks=None):
    """Equation 1 with every extension, one query and head at a time, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    shape = (*query.shape[:3:2], query.shape[1], key.shape[1])  # [B, N, T, S]
    mask, bias = np.broadcast_to(mask, shape), np.broadcast_to(np.asarray(bias, np.float64), shape)
    output = np.zeros((*query.shape[:3], value.shape[3]))
    weights, residual = np.zeros(shape), np.full(query.shape[:3], MASKED)
    for b, n, t in np.ndindex(shape[:3]):
        group = n // (query.shape[2] // key.shape[2])
        logits = key[b, :, group] @ query[b, t, n] * (scale or query.shape[3] ** -0.5)
        logits = softcap * np.tanh(logits / softcap) if softcap else logits
        exponentials = np.exp(logits + bias[b, n, t])[mask[b, n, t]]
        total = exponentials.sum() + (np.exp(sinks[n]) if sinks is not None else 0)
        if total > 0:
            weights[b, n, t, mask[b, n, t]] = exponentials / total
            residual[b, t, n] = np.log(total)
        output[b, t, n] = weights[b, n, t] @ value[b, :, group]
    return output, residual, weights


def alibi(slopes, queries, keys):
    """A structured bias, from positions [..., T] and [..., S] to [..., N, T, S]."""
    distance = queries[..., None, :, None] - keys[..., None, None, :]
    return -slopes[:, None, None] * jnp.abs(distance)


def buckets(table, queries, keys):
    """A structured bias that reads a table [distances, N] with one row for each distance."""
    distance = jnp.clip(queries[..., :, None] - keys[..., None, :], -3, 3) + 3
    return jnp.moveaxis(table[distance], -1, -3)


SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]], np.int32)
SAME = (SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None]) & (SEGMENTS > 0)[:, None, None]
DISTANCE = np.arange(T)[:, None] - np.arange(S)
BAND = (np.abs(DISTANCE) <= 1) & (np.arange(S) < 3)  # rows 4 and 5 have no key
MASK = np.random.default_rng(1).random((B, N, T, S)) < 0.6
BIAS = np.random.default_rng(2).normal(size=(N, T, S))
SINKS = np.array([-1.0, 0.0, 1.0, 3.0])

# name: (arguments of dot_product_attention, arguments of the reference)
FEATURES = {
    'plain': ({}, {}),
    'scale': ({'scale': 0.7}, {'scale': 0.7}),
    'mask': ({'mask': MASK}, {'mask': MASK}),
    'mask of all heads': ({'mask': MASK[:, :1]}, {'mask': MASK[:, :1]}),
    'bias': ({'bias': BIAS}, {'bias': BIAS}),
    'causal': ({'is_causal': True}, {'mask': DISTANCE >= 0}),
    'window': ({'local_window_size': 1}, {'mask': np.abs(DISTANCE) <= 1}),
    'left window': ({'local_window_size': (2, 0)}, {'mask': (DISTANCE >= 0) & (DISTANCE <= 2)}),
    'segments': ({'query_segment_ids': SEGMENTS}, {'mask': SAME}),
    'softcap': ({'softcap': 0.8}, {'softcap': 0.8}),
    'sinks': ({'sinks': SINKS}, {'sinks': SINKS}),
    'alibi': (
        {'bias': (alibi, SLOPES), 'is_causal': True},
        {'bias': -SLOPES[:, None, None] * np.abs(DISTANCE), 'mask': DISTANCE >= 0},
    ),
    'all': (
        {
            'bias': BIAS,
            'mask': MASK,
            'is_causal': True,
            'softcap': 0.8,
            'sinks': SINKS,
            'query_segment_ids': SEGMENTS,
        },
        {
            'bias': BIAS,
            'mask': MASK & SAME & (DISTANCE >= 0),
            'softcap': 0.8,
            'sinks': SINKS,
        },
    ),
}
