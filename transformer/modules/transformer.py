"""The Transformer: embeddings, one or two stacks, head. Every topology is this one module."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.config import TransformerConfig
from transformer.functional import ACTIVATIONS, affine, mean_pool, unembed
from transformer.modules.cache import LayerCache
from transformer.modules.context import Context, Dropout, drop
from transformer.modules.stack import Stack
from transformer.modules.weights import Table, Weights, make_norm

Batch = Mapping[str, jax.Array]
POOLED_SITE = 2  # of dropout; the stacks are 0 and 1
POOLER_ACTIVATIONS = {'tanh': jnp.tanh, 'relu': ACTIVATIONS['relu']}


@struct.dataclass
class Memory:
    """An encoder's output as the decoder's layers read it while decoding.

    Attributes:
        layers: keys and values [B K, S, H] of every layer's cross-attention.
        segment_ids: [B, S], 0 = padding; None: one segment a row.
    """

    layers: tuple[tuple[jax.Array, jax.Array], ...]
    segment_ids: jax.Array | None


class Head(nn.Module):
    """Features [B, T, D] -> float32 logits [B, T, V], by the table [V, E] if tied.

    E is `config.table_width`: D, or fewer.
    """

    config: TransformerConfig

    def setup(self):
        config = self.config
        inner, width = (config.embed_dim,), (config.table_width,)
        if config.head == 'masked_lm':  # Devlin et al. 2019: one more layer before the table
            self.transform = Weights(config, inner, width, True)
            self.norm = make_norm(config)
        elif config.embedding_width:
            self.projection = Weights(config, inner, width)
        if not config.tie_embeddings:
            self.output = Weights(config, width, (config.vocab_size,))
        if config.head_bias:
            dtype = jnp.dtype(config.param_dtype)
            self.bias = self.param('bias', nn.initializers.zeros, (config.vocab_size,), dtype)

    def __call__(self, x: jax.Array, table: jax.Array) -> jax.Array:
        x, table = self.operands(x, table)
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        if self.config.tie_embeddings:
            return self.outputs(unembed(x, table, dtype=dtype))
        return self.outputs(affine(x, table.T, dtype=dtype))  # its own matrix lies as [E, V]

    def operands(self, x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, T, E] and [V, E], whose products the logits are made of."""
        config = self.config
        if config.head == 'masked_lm':
            x = self.norm(ACTIVATIONS[config.activation](affine(x, *self.transform())))
        elif config.embedding_width:
            x = affine(x, *self.projection())
        return x, table if config.tie_embeddings else self.output()[0].T

    def outputs(self, products: jax.Array) -> jax.Array:
        """The logits [..., V], made of the products of `operands`."""
        config = self.config
        logits = products * config.logits_scale
        if config.head_bias:
            logits += self.bias
        if config.logits_softcap is not None:
            logits = config.logits_softcap * jnp.tanh(logits / config.logits_softcap)
        return logits


class Transformer(nn.Module):
    """An encoder, a decoder or both, as `config.topology` says.

    A batch is a mapping of [B, T] arrays: `tokens`, and optionally `positions` (default: the
    index), `segment_ids` (1, 2, ...; 0 = padding; default: all one segment), `token_types` and a
    bool `mask` [B, T, S] (True = may attend to the key, if nothing else forbids it), for the stack
    that makes the logits; `encoder_tokens`, `encoder_positions`, `encoder_segment_ids`
    [B, S] for the encoder of an encoder_decoder. Without a cache, the tokens of a segment are
    contiguous and in the order of their positions. Ids must be below `vocab_size`.

    Dropout happens if and only if `dropout` is given: that is the whole difference between
    training and evaluation.
    """

    config: TransformerConfig

    def setup(self):
        config = self.config
        std = config.init_std if config.embedding_std is None else config.embedding_std
        if config.init == 'xavier' and config.embedding_std is None:
            std = config.table_width**-0.5
        self.embedding = Table(config, config.vocab_size, config.table_width, std)
        if config.topology == 'encoder_decoder' and not config.share_embeddings:
            rows = config.encoder_vocab_size or config.vocab_size
            self.encoder_embedding = Table(config, rows, config.table_width, std)
        if config.num_token_types:
            self.token_types = Table(
                config, config.num_token_types, config.embed_dim, config.init_std
            )
        if config.topology != 'decoder':
            self.encoder = Stack(config, 'encoder')
        if config.topology != 'encoder':
            self.decoder = Stack(config, 'decoder')
        width = (config.embed_dim,)
        if config.embedding_width:
            self.embedding_projection = Weights(config, (config.embedding_width,), width)
        if config.head in ('lm', 'masked_lm'):
            self.head = Head(config)
        if config.pooler:
            self.pooler = Weights(config, width, width, True)
        if config.head == 'classifier':
            self.classifier = Weights(config, width, (config.num_classes,), True)

    def __call__(self, batch: Batch, dropout: Dropout | None = None) -> jax.Array:
        """Logits [B, T, V]; of a classifier [B, C]; features [B, T, D] if the head is 'none'."""
        features, _ = self.features(batch, dropout)
        if self.config.head == 'classifier':
            return self.class_logits(self.pooled(features, batch.get('segment_ids'), dropout))
        if self.config.pooler and self.is_initializing():
            self.pooled(features)
        return features if self.config.head == 'none' else self.logits(features)

    def features(
        self,
        batch: Batch,
        dropout: Dropout | None = None,
        cache: tuple[LayerCache, ...] | None = None,
        memory: Memory | None = None,
    ) -> tuple[jax.Array, tuple[LayerCache, ...] | None]:
        """Features [B, T, D] of the stack that makes the logits, and the caches with T more tokens.

        Args:
            cache: one entry a layer; tokens then attend to what is cached too. Keys S of the mask
                are then its slots.
            memory: of an encoder_decoder, from `encode_memory`; by default the encoder is run here.

        Raises:
            ValueError: a cache is given to an encoder or to scanned layers, or a learned position
                table is shorter than the rows.
        """
        config = self.config
        x = self._embed(self.embedding, batch['tokens'], batch.get('token_types'))
        context = self._context(batch, '', dropout)
        if config.topology == 'encoder':
            if cache is not None:
                raise ValueError('An encoder has no cache: its tokens see those that come later.')
            return self.encoder(x, context)
        if memory is not None:
            context = context.replace(memory_segment_ids=memory.segment_ids)
        elif config.topology == 'encoder_decoder':
            context = context.replace(
                memory=self.encode(batch, dropout),
                memory_segment_ids=batch.get('encoder_segment_ids'),
            )
        paired = cache is not None or context.memory_segment_ids is not None
        if paired and context.segment_ids is None:
            context = context.replace(segment_ids=jnp.ones(batch['tokens'].shape, jnp.int32))
        return self.decoder(x, context, cache, None if memory is None else memory.layers)

    def logits(self, features: jax.Array) -> jax.Array:
        """Float32 logits [B, T, V] of features [B, T, D]."""
        return self.head(features, self.embedding())

    def logits_operands(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, T, E] of the features and [V, E] of the vocabulary: each is multiplied by each."""
        return self.head.operands(features, self.embedding())

    def logits_of_products(self, products: jax.Array) -> jax.Array:
        """Float32 logits [..., V] of the products [..., V] of `logits_operands`."""
        return self.head.outputs(products)

    def encode(self, batch: Batch, dropout: Dropout | None = None) -> jax.Array:
        """The encoder's output [B, S, D] of an encoder_decoder."""
        table = self.embedding if self.config.share_embeddings else self.encoder_embedding
        x = self._embed(table, batch['encoder_tokens'])
        features, _ = self.encoder(x, self._context(batch, 'encoder_', dropout))
        return features

    def encode_memory(self, batch: Batch) -> Memory:
        """The encoder's output, projected once for every layer of the (unrolled) decoder."""
        return Memory(
            self.decoder.project_memory(self.encode(batch)), batch.get('encoder_segment_ids')
        )

    def pooled(
        self,
        features: jax.Array,
        segment_ids: jax.Array | None = None,
        dropout: Dropout | None = None,
    ) -> jax.Array:
        """One vector [B, D] for each row of an encoder's features [B, T, D].

        The first token's features or, with `config.pooling` 'mean', their mean over the tokens
        whose segment is not 0 (Reimers and Gurevych 2019); then BERT's projection and its
        `config.pooler_activation`, if there is a `config.pooler`.
        """
        if self.config.pooling == 'first':
            x = features[:, 0]
        else:
            x = mean_pool(features, None if segment_ids is None else segment_ids > 0)
        if self.config.pooler:
            activate = POOLER_ACTIVATIONS[self.config.pooler_activation]
            x = activate(affine(x, *self.pooler()))
        return drop(x, dropout, 'residual', POOLED_SITE)

    def class_logits(self, pooled: jax.Array) -> jax.Array:
        """Float32 logits [..., C] of pooled features [..., D]."""
        dtype = jnp.promote_types(pooled.dtype, jnp.float32)
        return affine(pooled, *self.classifier(), dtype=dtype)

    def _embed(self, table, tokens, token_types=None):
        x = table()[tokens]  # [B, T, E]
        if self.config.embedding_width:
            x = affine(x, self.embedding_projection()[0])  # [B, T, D]
        if not math.isclose(self.config.embed_scale, 1.0):
            x *= jnp.asarray(self.config.embed_scale, x.dtype)
        if self.config.num_token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x += self.token_types()[types]
        return x

    def _context(self, batch, prefix, dropout):
        tokens = batch[f'{prefix}tokens']
        positions = batch.get(f'{prefix}positions')
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        mask = None if prefix else batch.get('mask')
        return Context(positions, batch.get(f'{prefix}segment_ids'), mask, dropout=dropout)
