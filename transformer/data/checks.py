"""Mistakes in `config.data` that can be named without reading a corpus."""

import math

from ml_collections import ConfigDict

from transformer.data.opening import Paths, open_splits, split_paths
from transformer.data.packing import PACKINGS
from transformer.data.pairs import GENERATED
from transformer.data.tasks import TASKS
from transformer.data.tokenizers import TRAINERS, Tokenizer, load_tokenizer
from transformer.errors import UserError, check_choice
from transformer.ranges import check_ranges, flat


def check_data(config: ConfigDict) -> None:
    """Finds mistakes in `config.data` without reading the corpora.

    Raises:
        UserError: an unknown choice, a number out of range, fields that do not go together, or a
            path without files.
    """
    data = config.data
    check_choice(config.task, TASKS, 'task')
    check_choice(data.packing, PACKINGS, 'data.packing')
    check_choice(data.overlong, ('drop', 'cut'), 'data.overlong')
    check_ranges(flat(data.to_dict(), 'data.'))
    check_paths(config)
    check_weights(config)
    held_out = data.validation_path or data.validation_source_path
    if not held_out and not 0 < data.validation_fraction < 1:
        raise UserError(
            f'data.validation_fraction must be between 0 and 1, not {data.validation_fraction}: '
            'or set data.validation_path.'
        )
    if config.task == 'span_corruption' and data.packing != 'stream':
        raise UserError(
            f"task span_corruption lets documents run on: set data.packing='stream', not "
            f'{data.packing!r}.'
        )
    check_source_side(config)
    if data.tokenizer not in TRAINERS:
        check_special_tokens(config, load_tokenizer(data.tokenizer))
    open_splits(config)


def check_paths(config: ConfigDict) -> None:
    """Names of corpora that are none, or that do not go together or with the task."""
    paths_of = split_paths(config.data)
    for prefix, paths in paths_of.items():
        for name in (*paths.path, *paths.source, *paths.target):
            if type(name) is not str:
                raise UserError(f'data.{prefix}path must hold names of corpora, not {name!r}.')
        if len(paths.source) != len(paths.target):
            raise UserError(
                f'data.{prefix}source_path has {len(paths.source)} entries and '
                f'data.{prefix}target_path {len(paths.target)}: every file of sources needs its '
                'file of targets.'
            )
        # The default of data.path holds no pairs, so it may stay beside data.source_path.
        if paths.source and paths.path not in ((), ('stdlib',)):
            raise UserError(
                f'data.{prefix}path and data.{prefix}source_path are both set: give one of them.'
            )
        if not TASKS[config.task].pairs:
            _check_no_pairs(config.task, prefix, paths)
    if not paths_of[''].path and not paths_of[''].source:
        raise UserError("data.path is empty: give 'stdlib', a file, a glob, or 'hf:NAME'.")


def _check_no_pairs(task: str, prefix: str, paths: Paths) -> None:
    generated = next((name for name in paths.path if name in GENERATED), None)
    if paths.source or generated:
        what = f'data.{prefix}path {generated!r}' if generated else f'data.{prefix}source_path'
        raise UserError(
            f'{what} holds pairs and task {task} reads documents: set task=seq2seq or '
            'task=classification, or give a corpus of documents.'
        )


def check_weights(config: ConfigDict) -> None:
    """As many weights as corpora, or none."""
    data = config.data
    name = 'source_path' if data.source_path else 'path'
    if data.weights and len(data.weights) != len(data[name]):
        raise UserError(
            f'data.weights has {len(data.weights)} entries and data.{name} {len(data[name])}: give '
            'one for each corpus, or none.'
        )
    for weight in data.weights:
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise UserError(f'data.weights must be positive numbers, not {weight!r}.')


def check_source_side(config: ConfigDict) -> None:
    """Fields of an encoder's side are for seq2seq."""
    data = config.data
    for name in 'source_length', 'source_tokenizer', 'source_vocab_size':
        if config.task != 'seq2seq' and data[name] is not None:
            raise UserError(
                f'data.{name} is for task seq2seq, not for {config.task}: leave it unset.'
            )
    if data.source_vocab_size is not None and data.source_tokenizer is None:
        raise UserError(
            'data.source_vocab_size is of data.source_tokenizer, which is not set: set it, for '
            'example to bpe, or use data.vocab_size for both sides.'
        )
    if data.source_tokenizer is not None and data.source_tokenizer not in TRAINERS:
        load_tokenizer(data.source_tokenizer)


def check_special_tokens(config: ConfigDict, tokenizer: Tokenizer) -> None:
    """Raises UserError unless the tokenizer has the special tokens of the task."""
    needed = {'masked_lm': [tokenizer.mask_id], 'span_corruption': tokenizer.sentinel_ids}
    if config.task in needed and needed[config.task] in ((), [None]):
        token = TASKS[config.task].special_tokens[0]
        raise UserError(
            f'task {config.task} needs a tokenizer with the special token {token}, which '
            f'{config.data.tokenizer} has not: add it, or let data.tokenizer be one of '
            f'{", ".join(TRAINERS)}.'
        )
