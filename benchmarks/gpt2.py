"""One model for the benchmarks of training and decoding, as this project and as its peers have it.

GPT-2's architecture (Radford et al. 2019): learned positions, layer norms before the sublayers,
biases everywhere but in the head, GELU by tanh, a tied head, no dropout; float32.
"""

import contextlib
import dataclasses
import io
import math
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

EPS = 1e-5  # of the norms
LEARNING_RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 1e-3, 0.1, (0.9, 0.95), 1.0


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model and of a training batch."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    length: int = 256
    vocab: int = 4096
    batch: int = 8


TINY = Shape(layers=1, width=32, heads=2, length=32, vocab=384, batch=2)


def make_config(shape: Shape, folder: pathlib.Path) -> ConfigDict:
    """The project's config, and in the folder the text that it names."""
    from configs import base

    folder.joinpath('text.txt').write_text('a text of which the length alone matters. ' * 2000)
    config = base.get_config()
    config.data.path = (str(folder / 'text.txt'),)
    config.data.cache_dir = str(folder / 'cache')
    config.data.tokenizer = 'bytes'
    config.data.length = shape.length
    config.data.batch_size = shape.batch
    config.model.vocab_size = shape.vocab
    config.model.num_layers = shape.layers
    config.model.embed_dim = shape.width
    config.model.num_heads = shape.heads
    config.model.mlp_dim = 4 * shape.width
    config.model.max_length = shape.length
    config.model.position = 'learned'
    config.model.norm = 'layernorm'
    config.model.norm_eps = EPS
    config.model.attention_bias = 'all'
    config.model.feed_forward = 'mlp'
    config.model.activation = 'gelu_tanh'
    config.model.mlp_bias = True
    config.model.scan_layers = False
    config.optimizer.learning_rate = LEARNING_RATE
    config.optimizer.weight_decay = WEIGHT_DECAY
    config.optimizer.b1, config.optimizer.b2 = BETAS
    config.optimizer.clip_norm = CLIP_NORM
    config.schedule.name = 'constant'
    config.schedule.warmup_steps = 0
    return config


def make_experiment(config: ConfigDict) -> Any:
    """What train.py makes of a config."""
    from transformer.training.experiment import check_batch, check_config, load_experiment

    check_config(config)
    check_batch(config)
    return load_experiment(config)


def make_ours(
    shape: Shape,
    train: Mapping[str, Any] | None = None,
    scan: bool = False,
    remat: str = 'none',
) -> Any:
    """The project's experiment, with some fields of config.train and config.model."""
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(shape, pathlib.Path(folder))
        config.train.update(train or {})
        config.model.scan_layers = scan
        config.model.remat = remat
        return make_experiment(config)


def save_model(shape: Shape, folder: str) -> None:
    """Fresh parameters of the project, as a folder that `transformers` reads too."""
    from transformer.interop import save_pretrained

    experiment = make_ours(shape)
    save_pretrained(folder, experiment.model_config, experiment.initial_params(), None, 'gpt2')


def count(params: Any) -> int:
    """Number of values in a tree."""
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(params))


def make_tokens(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens [B, T] and their targets [B, T], the same for all."""
    size = shape.batch, shape.length + 1
    tokens = np.random.default_rng(0).integers(0, shape.vocab, size, np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def make_huggingface(shape: Shape) -> Any:
    """`transformers` on torch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocab,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function='gelu_pytorch_tanh',  # the same as gelu_new in one operation
        layer_norm_epsilon=EPS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation='sdpa',
    )
    return GPT2LMHeadModel(config)


def make_nanogpt(shape: Shape, checkout: str) -> Any:
    """github.com/karpathy/nanoGPT, its exact GELU replaced by GPT-2's."""
    import torch

    sys.path.insert(0, checkout)
    import model

    config = model.GPTConfig(
        block_size=shape.length,
        vocab_size=shape.vocab,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        dropout=0.0,
        bias=True,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        gpt = model.GPT(config)
    for block in gpt.transformer.h:
        block.mlp.gelu = torch.nn.GELU(approximate='tanh')
    return gpt


def make_nanodo(shape: Shape, checkout: str) -> Any:
    """github.com/google-deepmind/nanodo, which has no biases."""
    sys.path.insert(0, checkout)
    from nanodo.model import DoConfig, TransformerDo

    sizes = {'D': shape.width, 'H': shape.heads, 'L': shape.length, 'N': shape.layers}
    config = DoConfig(**sizes, V=shape.vocab, F=4 * shape.width, fsdp_enabled=False)
    return TransformerDo(config)


def make_linen(shape: Shape) -> Any:
    """flax.linen's own layers put together as a user of theirs does."""
    import jax
    import jax.numpy as jnp
    from flax import linen as nn

    normal = nn.initializers.normal(0.02)
    small = nn.initializers.normal(0.02 / math.sqrt(2 * shape.layers))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, mask):
            y = nn.LayerNorm(epsilon=EPS)(x)
            x += nn.MultiHeadDotProductAttention(
                shape.heads, kernel_init=normal, out_kernel_init=small
            )(y, mask=mask)
            y = nn.LayerNorm(epsilon=EPS)(x)
            y = nn.gelu(nn.Dense(4 * shape.width, kernel_init=normal)(y))
            return x + nn.Dense(shape.width, kernel_init=small)(y)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embed = nn.Embed(shape.vocab, shape.width, embedding_init=normal)
            positions = nn.Embed(shape.length, shape.width, embedding_init=normal)
            x = embed(tokens) + positions(jnp.arange(tokens.shape[1]))  # [B, T, D]
            mask = nn.make_causal_mask(tokens)
            for _ in range(shape.layers):
                x = Block()(x, mask)
            return embed.attend(nn.LayerNorm(epsilon=EPS)(x))  # [B, T, V]

    return Model()
