"""A small Transformer of any config, with its inputs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.modules import Transformer

BASE = TransformerConfig(
    vocab_size=13,
    num_layers=2,
    embed_dim=12,
    num_heads=3,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=20,
    max_length=16,
    scan_layers=False,
    init='fan_in',
)
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
BATCH = {'tokens': TOKENS, 'encoder_tokens': np.array([[5, 6, 7], [8, 9, 10]])}
PLACEMENTS = ('pre', 'post', 'sandwich', 'parallel', 'parallel_two', 'deepnorm')
POSITIONS = ('none', 'sinusoidal', 'learned', 'rope', 'alibi', 'relative')


def make(**changes):
    """A small model with random parameters, biases and norm scales included."""
    model = Transformer(dataclasses.replace(BASE, **changes))
    shapes = jax.eval_shape(model.init, jax.random.key(0), BATCH)['params']
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: (0.3 * rng.standard_normal(leaf.shape)).astype(np.float32), shapes
    )
    return model, params


def apply(model, params, batch, **arguments):
    return jax.jit(functools.partial(model.apply, **arguments))({'params': params}, batch)


def gradients(model, params, target):
    """Gradients of the logits [:, target], weighed, in the parameters and the embedded tokens.

    Returns:
        The logits, the parameters' gradients, and the absolute gradients of the embedded tokens
        [B, T] of the stack that makes the logits.
    """
    embedded = jax.random.normal(jax.random.key(1), (*TOKENS.shape, model.config.embed_dim))

    def loss(params, embedded):
        def add_to_embedded(call, args, kwargs, context):
            x = call(*args, **kwargs)
            is_input = context.method_name == '_embed' and x.shape == embedded.shape
            return x + embedded if is_input else x

        with nn.intercept_methods(add_to_embedded):
            logits = model.apply({'params': params}, BATCH)
        return (logits[:, target] * jnp.sin(jnp.arange(logits.shape[-1]))).sum(), logits

    grads, logits = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, embedded)
    return logits, grads[0], np.abs(grads[1]).sum(-1)
