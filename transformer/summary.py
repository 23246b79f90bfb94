"""Parameters, FLOPs and memory of an experiment, without allocating any of it.

    python -m transformer.summary --config=configs/gpt2_small.py [--config.FIELD=VALUE] [--json]

All numbers come from the shapes of the model and of its training step. See `summarize`.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from transformer.config import transformer_config
from transformer.config_fields import override
from transformer.config_files import load_config
from transformer.data.tasks import TASKS
from transformer.errors import UserError, check_choice
from transformer.flags import parse, run_main
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
from transformer.memory import activation_bytes_per_token, optimizer_bytes, tree_bytes
from transformer.training.optimizers import OPTIMIZERS

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
        `activation_bytes_per_token`: kept for the backward pass without remat, by component and
        in total; see that function. `activation_bytes_per_token_by_remat`: the total with
        model.remat, none and full.
        `memory_bytes`: of a training step on one device that holds all of it: `parameters`;
        `gradients`, twice with accumulation, for the sum and a summand; `optimizer`;
        `activations` of a micro-batch of `rows`; in total. XLA's temporaries come on top, with
        remat among them what a layer at a time computes again.
        `complexity`: FLOPs of a forward pass over one row by length, of `attention` (Q K^T and
        the sum of values) and of the `feed_forward`; their `equation` and `crossing_length`.

    Raises:
        UserError: the config makes no model, or does not tell the size of its vocabulary.
    """
    check_choice(config.optimizer.name, OPTIMIZERS, 'optimizer.name')
    model = transformer_config(config.model, vocab_size=vocab_size(config))
    length = config.data.length
    rows = max(1, config.data.batch_size // config.train.accumulation)
    activations = _activations_by_remat(config, model)
    parameter_bytes = tree_bytes(parameter_shapes(model))
    memory = {
        'parameters': parameter_bytes,
        'gradients': parameter_bytes * (1 if config.train.accumulation == 1 else 2),
        'optimizer': optimizer_bytes(config, model),
        'activations': round(activations[model.remat]['total'] * rows * length),
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
        'activation_bytes_per_token': activations['none'],
        'activation_bytes_per_token_by_remat': {
            remat: kept['total'] for remat, kept in activations.items()
        },
        'memory_bytes': _with_total(memory),
        'complexity': _complexity(model, length),
    }


def vocab_size(config: ConfigDict) -> int:
    """`model.vocab_size`, or else the number of tokens that the config's tokenizer will have."""
    special_tokens = 1 + len(TASKS[config.task].special_tokens)  # the separator is one
    known = {'bpe': config.data.vocab_size, 'bytes': 256 + special_tokens}
    size = config.model.vocab_size or known.get(config.data.tokenizer)
    if size is None:
        raise UserError(
            'model.vocab_size is not set, and only the data tells how many tokens data.tokenizer '
            f'{config.data.tokenizer!r} has: give --config.model.vocab_size=N.'
        )
    return size


def _activations_by_remat(config, model):
    model = dataclasses.replace(model, scan_layers=True)  # the same values, traced once
    return {
        remat: _with_total(
            activation_bytes_per_token(config, dataclasses.replace(model, remat=remat))
        )
        for remat in dict.fromkeys((model.remat, 'none', 'full'))
    }


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
    activations = summary['activation_bytes_per_token']

    def with_share(parts, name, form):
        share = parts[name] / parts['total'] if parts['total'] else 0.0
        return f'{parts[name]:{form}}', f'{100 * share:.0f}'

    quantities = 'parameters', 'forward\nFLOPs\na token', 'activation\nbytes\na token'
    table = _table('component', *(column for name in quantities for column in (name, '%')))
    for name in parameters:
        table.add_row(
            _words(name),
            *with_share(parameters, name, ','),
            *with_share(flops, name, '.4g'),
            *with_share(activations, name, ',.0f'),
        )
    console.print(table)
    console.print(
        f'Rows of {summary["length"]:,} tokens; 2 FLOPs a multiply-add. Training takes three '
        f'times the total: {summary["training_flops_per_token"]:,.0f} FLOPs a token. Activations '
        'are what jax.vjp of a training step keeps without remat for the backward pass, each '
        'value with the component that computes it (residual sums: the sublayer before).\n'
    )


def _print_memory(console, summary):
    table = _table('memory of a training step', 'MB')
    for name, size in summary['memory_bytes'].items():
        table.add_row(_words(name), f'{size / 1e6:,.1f}')
    console.print(table)
    activations = ', '.join(
        f'{size:,.0f} with remat {remat}'
        for remat, size in summary['activation_bytes_per_token_by_remat'].items()
    )
    console.print(
        f'Optimizer {summary["optimizer"]}; activations of a micro-batch of {summary["rows"]} '
        f'rows, which devices share, with dtype {summary["dtype"]} and remat {summary["remat"]}. '
        f"Bytes a token: {activations}. XLA's temporaries come on top.\n"
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
