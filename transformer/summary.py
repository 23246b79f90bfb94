"""Parameters, FLOPs and memory of an experiment, without allocating any of it.

    python -m transformer.summary --config=configs/gpt2_small.py [--config.FIELD=VALUE] [--json]

All numbers come from the shapes of the model and of its training step. See `summarize`.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from transformer.config import TransformerConfig, transformer_config
from transformer.errors import UserError, check_choice
from transformer.flags import load_config, override, parse, run_main
from transformer.flops import (
    attention_flops_per_token,
    count_parameters,
    crossing_length,
    forward_flops_per_token,
    parameter_shapes,
    parameters_by_component,
    peak_flops,
    training_flops_per_token,
)
from transformer.modules import Dropout, Transformer
from transformer.training.optimizers import OPTIMIZERS, make_optimizer
from transformer.training.step import Recipe, hyperparameters, loss_sums, row_keys

__all__ = ['count_parameters', 'peak_flops', 'summarize', 'training_flops_per_token']

LENGTHS = (128, 512, 2048, 8192, 32_768, 131_072)
EQUATION = (
    'the least n where, summed over layers, 4 N H k(n) >= 2 P, with N heads of H dimensions, P '
    'weights in a feed-forward, and k(n) the keys a query sees: (n + 1) / 2 in a causal layer, '
    'n in a bidirectional one and in cross-attention, fewer in a window'
)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog='python -m transformer.summary',
        description='Parameters, FLOPs and memory of a config, by component.',
    )
    parser.add_argument('--config', required=True, help='config file, as configs/gpt2_small.py')
    parser.add_argument('--json', action='store_true', help='print JSON and nothing else')
    args, overrides = parse(parser, argv)
    config = load_config(args.config)
    for name, text in overrides:
        override(config, name, text)
    summary = summarize(config)
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        print_summary(summary)


def summarize(config: ConfigDict) -> dict[str, Any]:
    """The numbers that the command shows, as JSON's types.

    Returns:
        `parameters`: their number by component and in total.
        `forward_flops_per_token`: FLOPs by component and in total, over rows of `length` =
        data.length tokens; `training_flops_per_token`: three times the total.
        `activation_bytes_per_token`: of the `layers`, by remat (model.remat, none and full), and
        of the `head`; see that function.
        `memory_bytes`: of a training step on one device that holds all of it: `parameters`;
        `gradients`, twice with accumulation, for the sum and a summand; `optimizer`; activations
        of a micro-batch of `rows`; in total. XLA's temporaries come on top, with remat among them
        what a layer at a time computes again.
        `complexity`: FLOPs of a forward pass over one row by length, of `attention` (Q K^T and
        the sum of values) and of the `feed_forward`; their `equation` and `crossing_length`.

    Raises:
        UserError: the config makes no model, or does not tell the size of its vocabulary.
    """
    check_choice(config.optimizer.name, OPTIMIZERS, 'optimizer.name')
    model = transformer_config(config.model, vocab_size=vocab_size(config))
    length = config.data.length
    rows = max(1, config.data.batch_size // config.train.accumulation)
    activations = activation_bytes_per_token(config, model)
    parameter_bytes = _bytes(parameter_shapes(model))
    memory = {
        'parameters': parameter_bytes,
        'gradients': parameter_bytes * (1 if config.train.accumulation == 1 else 2),
        'optimizer': _bytes(_optimizer_shapes(config, model)),
        'layer_activations': round(activations['layers'][model.remat] * rows * length),
        'head_activations': round(activations['head'] * rows * length),
    }
    return {
        'model': f'{model.topology}, {model.num_layers} layers, {model.embed_dim} wide',
        'length': length,
        'rows': rows,
        'optimizer': config.optimizer.name,
        'dtype': model.dtype,
        'remat': model.remat,
        'parameters': _with_total(parameters_by_component(model)),
        'forward_flops_per_token': _with_total(forward_flops_per_token(model, length)),
        'training_flops_per_token': training_flops_per_token(model, length),
        'activation_bytes_per_token': activations,
        'memory_bytes': _with_total(memory),
        'complexity': _complexity(model, length),
    }


def vocab_size(config: ConfigDict) -> int:
    """`model.vocab_size`, or else the number of tokens that the config's tokenizer will have."""
    known = {'bpe': config.data.vocab_size, 'bytes': 257}  # 256 bytes and the separator
    size = config.model.vocab_size or known.get(config.data.tokenizer)
    if size is None:
        raise UserError(
            'model.vocab_size is not set, and only the data tells how many tokens data.tokenizer '
            f'{config.data.tokenizer!r} has: give --config.model.vocab_size=N.'
        )
    return size


def activation_bytes_per_token(config: ConfigDict, model: TransformerConfig) -> dict[str, Any]:
    """Bytes that a training step keeps for its backward pass, for each token of a micro-batch.

    These are the residuals of `jax.vjp`, in the dtypes and with the attention that would run here.
    Without remat they are every value that a derivative reads, attention's weights among them
    where the implementation keeps [B, N, T, T]; with 'full' they are the inputs of the layers.
    What does not depend on the rows, such as a copy of the weights in `model.dtype`, is not
    counted. Looped layers may keep less: there XLA can choose to compute a cheap value again.

    Returns:
        `layers`: of embeddings and layers, a dict by remat: the model's, none and full.
        `head`: of logits and loss, which no remat changes and `loss.chunk` removes.
    """
    model = dataclasses.replace(model, scan_layers=True)  # the same values, traced once
    remats = {
        name: dataclasses.replace(model, remat=name)
        for name in dict.fromkeys((model.remat, 'none', 'full'))
    }
    layers = {name: _growth(config, remat, _features_sum) for name, remat in remats.items()}
    head = 0.0
    if model.head != 'none':
        head = _growth(config, remats['full'], loss_sums) - layers['full']
    return {'layers': layers, 'head': head}


def _growth(config, model, function):
    """Bytes that the backward pass of `function` reads more for each token more."""
    some, more = (_bytes(_residuals(config, model, function, rows)) for rows in (2, 4))
    return (more - some) / 2 / config.data.length


def _residuals(config, model, function, rows):
    """Shapes of all that the backward pass of `function`, called as `loss_sums`, reads."""
    hparams = hyperparameters(config)
    # However many rows a chunk of logits has, the backward pass computes it again.
    recipe = Recipe(Transformer(model), chunk=min(config.loss.chunk, 1))
    rates = {name: rate for name, rate in config.dropout.items() if rate}

    def backward(params, batch):
        keys = row_keys(0, jnp.zeros((), jnp.int32), jnp.arange(rows))
        dropout = Dropout(keys, **rates) if rates else None
        return jax.vjp(lambda params: function(params, batch, hparams, recipe, dropout)[0], params)

    names = ('tokens', 'segment_ids', 'targets', 'encoder_tokens', 'encoder_segment_ids')
    shape = rows, config.data.length
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in names}
    batch['weights'] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(backward, parameter_shapes(model), batch)[1]


def _features_sum(params, batch, hparams, recipe, dropout):
    """In the place of `loss_sums`, a loss that needs no head."""
    return recipe.model.apply({'params': params}, batch, dropout, method='features')[0].sum(), {}


def _optimizer_shapes(config, model):
    hparams = hyperparameters(config)
    optimizer = make_optimizer(
        config.optimizer.name, hparams, hparams['learning_rate'], config.optimizer.no_decay
    )
    return jax.eval_shape(optimizer.init, parameter_shapes(model))


def _complexity(model, length):
    """Section 6.1 of the mathematics: attention's O(n^2 d) against the feed-forward's O(n d^2)."""
    crossing = crossing_length(model)
    lengths = sorted({*LENGTHS, length} | ({crossing} if crossing else set()))
    feed_forward = forward_flops_per_token(model, 1)['feed_forward']
    return {
        'equation': EQUATION,
        'crossing_length': crossing,
        'flops_per_row': [
            {
                'length': n,
                'attention': n * attention_flops_per_token(model, n),
                'feed_forward': n * feed_forward,
            }
            for n in lengths
        ],
    }


def _bytes(shapes):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _with_total(parts):
    return parts | {'total': sum(parts.values())}


def print_summary(summary: dict[str, Any]) -> None:
    """Prints what `summarize` returns as tables."""
    console = Console(highlight=False)
    console.print(summary['model'])
    _print_components(console, summary)
    _print_memory(console, summary)
    _print_complexity(console, summary['complexity'])


def _print_components(console, summary):
    parameters, flops = summary['parameters'], summary['forward_flops_per_token']

    def share(parts, name):
        return f'{parts[name] / parts["total"]:.1%}'

    table = _table('component', 'parameters', 'share', 'forward FLOPs a token', 'share')
    for name, count in parameters.items():
        numbers = share(parameters, name), f'{flops[name]:,.0f}', share(flops, name)
        table.add_row(_words(name), f'{count:,}', *numbers)
    console.print(table)
    console.print(
        f'Rows of {summary["length"]:,} tokens; 2 FLOPs a multiply-add. Training takes three '
        f'times the total: {summary["training_flops_per_token"]:,.0f} FLOPs a token.\n'
    )


def _print_memory(console, summary):
    activations = summary['activation_bytes_per_token']
    table = _table('memory of a training step', 'MB')
    for name, size in summary['memory_bytes'].items():
        table.add_row(_words(name), f'{size / 1e6:,.1f}')
    console.print(table)
    table = _table('kept for the backward pass', 'bytes a token')
    for remat, size in activations['layers'].items():
        table.add_row(f'layers, remat {remat}', f'{size:,.0f}')
    table.add_row('head and loss', f'{activations["head"]:,.0f}')
    console.print(table)
    console.print(
        f'Optimizer {summary["optimizer"]}; activations of a micro-batch of {summary["rows"]} '
        f'rows, which devices share, with dtype {summary["dtype"]} and remat {summary["remat"]}. '
        "They are what jax.vjp of the step keeps; XLA's temporaries come on top.\n"
    )


def _print_complexity(console, complexity):
    table = _table('length n', 'attention O(n² d)', 'feed-forward O(n d²)', 'ratio')
    for row in complexity['flops_per_row']:
        attention, feed_forward = row['attention'], row['feed_forward']
        numbers = f'{attention:.3e}', f'{feed_forward:.3e}', f'{attention / feed_forward:.3f}'
        table.add_row(f'{row["length"]:,}', *numbers)
    console.print(table)
    crossing = complexity['crossing_length']
    meet = f'They meet at n = {crossing:,}' if crossing else 'They never meet'
    console.print(
        'Forward FLOPs of one row: Q Kᵀ and the sum of values against the feed-forward. '
        f'{meet}: {complexity["equation"]}.'
    )


def _table(*columns):
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify='right' if number else 'left')
    return table


def _words(name):
    return name.replace('feed_forward', 'feed-forward').replace('_', ' ')


if __name__ == '__main__':
    run_main(main)
