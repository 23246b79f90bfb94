"""What a training step holds in memory, from the shapes of its values: nothing is allocated."""

import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from ml_collections import ConfigDict

from transformer.config import TransformerConfig
from transformer.flops import COMPONENTS, parameter_shapes
from transformer.modules import Dropout, Transformer
from transformer.training.optimizers import make_optimizer
from transformer.training.step import (
    Recipe,
    hyperparameters,
    loss_sums,
    row_keys,
    tokens_at_a_time,
)

# The component that computes a value, by the last of these words in the names of the modules it is
# computed in. None: a value between components, which belongs to the one that computed last.
SCOPES = {
    'loss': 'head',
    'head': 'head',
    'features': 'embedding',
    'encoder': 'embedding',
    'decoder': 'embedding',
    'layer': None,
    'slot': None,
    'attention': 'attention',
    'feed_forward': 'feed_forward',
    'norm': 'norm',
}


def activation_bytes_per_token(config: ConfigDict, model: TransformerConfig) -> dict[str, float]:
    """Bytes that a training step keeps for its backward pass, for each token of a micro-batch.

    These are the residuals of `jax.vjp` of the whole step, in the dtypes and with the attention
    that would run here. Without remat they are every value that a derivative reads, attention's
    weights among them where the implementation keeps [B, N, T, T]; with 'full' they are the inputs
    of the layers. What does not depend on the rows, such as a copy of the weights in
    `model.dtype`, is not counted. Looped layers may keep less: there XLA can choose to compute a
    cheap value again.

    Returns:
        By component (COMPONENTS); each array counts once, for the component that computes it,
        not for those that read it: normed features are the norm's, but the copy of another shape
        that a feed-forward makes of them is the feed-forward's. Residual sums and dropout masks,
        computed between components, belong to the sublayer before them. The loss is the head's,
        as are targets and their weights; positions and all other inputs are the embedding's.
    """
    some, more = (_residuals(config, model, rows) for rows in (2, 4))
    kept = dict.fromkeys(COMPONENTS, 0.0)
    for (owner, few), (_, many) in zip(some, more, strict=True):
        kept[owner] += (many - few) / 2 / config.data.length
    return kept


def optimizer_bytes(config: ConfigDict, model: TransformerConfig) -> int:
    """Bytes of the optimizer's state."""
    hparams = hyperparameters(config)
    optimizer = make_optimizer(
        config.optimizer.name, hparams, hparams['learning_rate'], config.optimizer.no_decay
    )
    return tree_bytes(jax.eval_shape(optimizer.init, parameter_shapes(model)))


def tree_bytes(shapes: Any) -> int:
    """Bytes of all arrays of a tree, or of `jax.ShapeDtypeStruct`s in their place."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _residuals(config, model, rows):
    """(component, bytes) of every array that the backward pass of a step over `rows` reads."""
    hparams = hyperparameters(config)
    tokens = config.data.batch_size // config.train.accumulation * config.data.length
    chunk = tokens_at_a_time(config.loss.chunk, tokens, model.vocab_size)
    # However many rows a chunk of logits has, none of them is kept.
    recipe = Recipe(Transformer(model), chunk=int(chunk < tokens))
    rates = {name: rate for name, rate in config.dropout.items() if rate}
    function = _features_sum if model.head == 'none' else loss_sums

    def backward(params, batch):
        keys = row_keys(0, jnp.zeros((), jnp.int32), jnp.arange(rows))
        dropout = Dropout(keys, **rates) if rates else None

        @jax.named_scope('loss')
        def loss(params):
            return function(params, batch, hparams, recipe, dropout)[0]

        return jax.vjp(loss, params)[1]

    names = ('tokens', 'segment_ids', 'targets', 'encoder_tokens', 'encoder_segment_ids')
    shape = rows, config.data.length
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in names}
    batch['weights'] = jax.ShapeDtypeStruct(shape, jnp.float32)
    params = parameter_shapes(model)
    jaxpr = jax.make_jaxpr(backward)(params, batch).jaxpr
    inputs = ['embedding'] * len(jax.tree.leaves(params))  # parameters do not grow with the rows
    inputs += ['head' if name in ('targets', 'weights') else 'embedding' for name in sorted(batch)]
    owners, _ = _owners(jaxpr, '', 'embedding', inputs)
    return [(owner, tree_bytes(out.aval)) for owner, out in zip(owners, jaxpr.outvars, strict=True)]


def _features_sum(params, batch, hparams, recipe, dropout):
    """In the place of `loss_sums`, a loss that needs no head."""
    return recipe.model.apply({'params': params}, batch, dropout, method='features')[0].sum(), {}


def _owners(jaxpr, scope, last, inputs=()):
    """The components of a jaxpr's outputs, and the one that computes last.

    Args:
        scope: names of the modules that the jaxpr is called in.
        last: component that computed before it.
        inputs: components of its inputs. By default they are what the last one has computed: so
            is the input of a layer in a scan, by the layer before.
    """
    owners = dict(zip(jaxpr.invars, inputs, strict=False))
    for equation in jaxpr.eqns:
        inside = f'{scope}/{equation.source_info.name_stack}'
        called = equation.params.get('jaxpr', equation.params.get('call_jaxpr'))
        if called is None:
            words = re.findall('|'.join(SCOPES), inside)
            last = (SCOPES[words[-1]] if words else None) or last
            results = [last] * len(equation.outvars)
        else:
            results, last = _owners(getattr(called, 'jaxpr', called), inside, last)
        owners |= zip(equation.outvars, results, strict=True)
    outputs = [last if isinstance(out, Literal) else owners.get(out, last) for out in jaxpr.outvars]
    return outputs, last
