"""TransformerConfig: what makes a model, what is refused and how, and its form in a config file."""

import dataclasses
import functools
import math
import typing
from typing import Literal

import pytest

from configs import base
from transformer.config import (
    RelativeConfig,
    RopeConfig,
    TransformerConfig,
    model_fields,
    transformer_config,
)
from transformer.config_fields import field_names
from transformer.errors import check_choice, choose, nearest
from transformer.functional.attention import IMPLEMENTATIONS
from transformer.ranges import LARGEST, RANGES, check_ranges, flat


def choices():
    """(section, field, its valid names) of every exclusive choice."""
    for cls, section in (TransformerConfig, ''), (RopeConfig, 'rope'):
        for name, hint in typing.get_type_hints(cls).items():
            if typing.get_origin(hint) is Literal:
                yield section, name, typing.get_args(hint)


def config(section='', **values) -> TransformerConfig:
    """A config with some fields of the section changed, and a topology that allows them."""
    if section:
        values = {section: RopeConfig(**values)}
    if values.get('head') == 'classifier':
        values = {'topology': 'encoder', 'num_classes': 2, **values}
    return TransformerConfig(**{'vocab_size': 100, **values})


@pytest.mark.parametrize(('section', 'name', 'names'), list(choices()))
def test_a_choice_takes_its_names_and_lists_them_when_it_gets_another(
    section, name, names, refusal
):
    for value in names:
        made = config(section, **{name: value})
        assert getattr(made.rope if section else made, name) == value
    for wrong in names[0] + ' ', names[0].upper(), '', None:
        message = refusal(config, section, **{name: wrong})
        assert f'model.{section}.{name}'.replace('..', '.') in message
        assert f'not {wrong!r}' in message
        assert all(value in message for value in names)


def test_every_implementation_of_attention_can_be_chosen():
    names = {name: values for _, name, values in choices()}['attention_implementation']
    assert set(names) == {'auto', *IMPLEMENTATIONS}


def test_there_are_choices():
    assert {name for _, name, _ in choices()} >= {'topology', 'position', 'dtype', 'layout'}


@pytest.mark.parametrize(
    ('values', 'words'),
    [
        *(({name: 0}, [f'model.{name}', 'at least 1', '0']) for name in ('vocab_size', 'mlp_dim')),
        *(({name: -1}, [f'model.{name}', 'at least 1', '-1']) for name in ('num_layers', 'window')),
        ({'embed_dim': 0}, ['model.embed_dim']),
        ({'num_heads': 0}, ['model.num_heads']),
        ({'max_length': 0}, ['model.max_length']),
        ({'num_encoder_layers': 0}, ['model.num_encoder_layers']),
        ({'num_kv_heads': 0}, ['model.num_kv_heads', 'at least 1']),
        ({'head_dim': 0}, ['model.head_dim', 'at least 1']),
        ({'embed_dim': 513}, ['embed_dim 513', 'num_heads 8', 'model.head_dim']),
        ({'num_kv_heads': 3}, ['num_heads 8', 'num_kv_heads 3']),
        ({'num_kv_heads': 16}, ['num_heads 8', 'num_kv_heads 16']),
        ({'head_dim': 7}, ['model.rope.fraction 1.0', '7 of 7', 'even']),
        ({'rope': RopeConfig(fraction=0.01)}, ['fraction 0.01', '0 of 64', 'positive']),
        ({'rope': RopeConfig(fraction=2.0)}, ['fraction 2.0', '128 of 64']),
        ({'position': 'sinusoidal', 'embed_dim': 9, 'num_heads': 1}, ['embed_dim', 'even', '9']),
        ({'layer_pattern': ('local', 'global')}, ['layer_pattern', 'model.window']),
        ({'layer_pattern': ('locale',)}, ['layer_pattern', "'locale'", "Did you mean 'local'?"]),
        ({'pooler': True}, ['model.pooler', "'decoder'"]),
        ({'head': 'classifier', 'topology': 'decoder'}, ["'classifier'", "'decoder'"]),
        ({'head': 'classifier', 'num_classes': None}, ["'classifier'", 'model.num_classes']),
        ({'num_classes': 3}, ['model.num_classes', "'classifier'"]),
        ({'encoder_vocab_size': 9}, ['model.encoder_vocab_size', 'share_embeddings=false']),
        ({'norm_placement': 'parallel', 'topology': 'encoder_decoder'}, ["'parallel'", 'cross']),
        (
            {'norm_placement': 'parallel_two', 'topology': 'encoder_decoder'},
            ["'parallel_two'", 'cross'],
        ),
    ],
)
def test_what_makes_no_model_is_refused_by_name(values, words, refusal):
    message = refusal(config, **values)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    'values',
    [
        {'embed_dim': 513, 'head_dim': 64},
        {'head_dim': 7, 'position': 'alibi'},
        {'rope': RopeConfig(fraction=0.25)},
        {'layer_pattern': ('local', 'global'), 'window': 8},
        {'pooler': True, 'topology': 'encoder'},
        {'norm_placement': 'parallel', 'topology': 'encoder'},
        {'norm_placement': 'parallel_two', 'topology': 'encoder'},
        {'num_kv_heads': 1, 'window': 1},
        {'topology': 'encoder_decoder', 'num_encoder_layers': 1},
    ],
)
def test_what_is_close_to_a_refusal_and_makes_a_model_is_accepted(values):
    config(**values)


def test_unset_fields_follow_the_ones_they_are_derived_from():
    default = config(embed_dim=96, num_heads=6, num_layers=5)
    assert (default.dim_per_head, default.kv_heads, default.encoder_layers) == (16, 6, 5)
    assert (default.rotary_dim, default.pattern) == (16, ('global',))
    given = config(head_dim=32, num_kv_heads=2, window=4, rope=RopeConfig(fraction=0.25))
    assert (given.dim_per_head, given.kv_heads) == (32, 2)
    assert config(topology='encoder_decoder', num_encoder_layers=3).encoder_layers == 3
    assert (given.rotary_dim, given.pattern) == (8, ('local',))
    mixed = config(window=4, layer_pattern=('local', 'global'))
    assert mixed.pattern == ('local', 'global')


def test_a_config_is_a_constant_that_can_be_a_key():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().num_layers = 3
    assert {config(): 1}[config()] == 1
    assert hash(config()) != hash(config(num_layers=7))


# Its form in a config file.


@pytest.mark.parametrize('cls', [TransformerConfig, RopeConfig, RelativeConfig])
def test_every_field_is_in_the_config_file_with_its_default_and_type(cls):
    fields = model_fields(cls)
    hints = typing.get_type_hints(cls)
    assert set(fields) == set(hints)
    for field in dataclasses.fields(cls):
        hint, value = hints[field.name], fields[field.name]
        if dataclasses.is_dataclass(hint):
            assert set(value) == set(typing.get_type_hints(hint))
            continue
        assert value == (None if field.default is dataclasses.MISSING else field.default)
        kinds = {type(part) for part in typing.get_args(hint)}  # of a Literal
        if typing.get_origin(hint) is not Literal:
            kinds = set(typing.get_args(hint)) or {hint}  # int | None
        kinds = {tuple} if typing.get_origin(hint) is tuple else kinds - {type(None)}
        assert {fields.get_type(field.name)} == kinds


def test_a_placeholder_is_unset_and_typed():
    fields = model_fields(TransformerConfig)
    for name in 'vocab_size', 'num_kv_heads', 'window':
        assert fields[name] is None
        with pytest.raises(TypeError):
            fields[name] = 'many'
        fields[name] = 4
        assert fields[name] == 4
    fields.rope.local_base = 10
    assert type(fields.rope.local_base) is float


def test_the_defaults_of_the_config_file_are_those_of_the_class():
    fields = model_fields(TransformerConfig)
    assert transformer_config(fields, vocab_size=100) == TransformerConfig(vocab_size=100)
    fields.vocab_size = 100
    assert transformer_config(fields) == TransformerConfig(vocab_size=100)


def test_every_value_of_the_config_file_arrives():
    fields = model_fields(TransformerConfig).lock()
    fields.update(vocab_size=9, num_layers=2, position='relative', window=8, num_kv_heads=2)
    fields.rope.update(base=5e5, layout='interleaved', original_length=64)
    fields.relative.num_buckets = 16
    fields.layer_pattern = ['local', 'global']
    assert transformer_config(fields, num_layers=3) == TransformerConfig(
        vocab_size=9,
        num_layers=3,
        position='relative',
        window=8,
        num_kv_heads=2,
        rope=RopeConfig(base=5e5, layout='interleaved', original_length=64),
        relative=RelativeConfig(num_buckets=16),
        layer_pattern=('local', 'global'),
    )
    assert fields.num_layers == 2  # changes are of the result only


def test_reading_a_config_file_refuses_by_name(refusal):
    fields = model_fields(TransformerConfig)
    assert 'model.vocab_size is not set' in refusal(transformer_config, fields)
    message = refusal(transformer_config, fields, vocab_size=9, num_layres=3)
    assert 'model.num_layres' in message
    assert "'num_layers'" in message
    fields.num_hedas = 3
    assert "'num_heads'" in refusal(transformer_config, fields, vocab_size=9)


@pytest.mark.parametrize(('section', 'name'), [('rope', 'bsae'), ('relative', 'num_bucket')])
def test_reading_a_config_file_refuses_an_unknown_field_of_a_section_by_name(
    section, name, refusal
):
    fields = model_fields(TransformerConfig)
    fields[section][name] = 3
    assert f'model.{section}.{name}' in refusal(transformer_config, fields, vocab_size=9)


# Messages.


def test_nearest_offers_what_is_close_and_nothing_else():
    assert nearest('num_layres', ['num_layers', 'num_heads']) == " Did you mean 'num_layers'?"
    assert nearest('zzz', ['num_layers']) == ''
    assert nearest('x', []) == ''


def test_choose_looks_up_or_lists_the_names(refusal):
    table = {'relu': 1, 'gelu': 2}
    assert choose(table, 'gelu', 'activation') == 2
    message = refusal(choose, table, 'rellu', 'activation')
    assert message == ("activation must be one of gelu, relu; not 'rellu'. Did you mean 'relu'?")
    assert refusal(check_choice, 'x', table, 'it') == "it must be one of gelu, relu; not 'x'."


# Ranges.


def test_every_number_of_a_config_has_a_range():
    numbers = {
        name
        for name, value in flat(changed_numbers(base.get_config()).to_dict()).items()
        if type(value) in LARGEST
    }
    assert numbers == set(RANGES)


def changed_numbers(config):
    """The config with its unset numbers set."""
    for name in field_names(config):
        *sections, last = name.split('.')
        section = functools.reduce(lambda part, key: part[key], sections, config)
        if section[last] is None and section.get_type(last) is not str:
            section[last] = 1
    return config


@pytest.mark.parametrize('name', RANGES)
def test_a_number_outside_its_range_is_refused_by_name(name, refusal):
    outside = {'at least 0': -1, 'at least 1': 0, 'positive': 0, 'in [0, 1)': 1}
    outside |= {'in [0, 1]': 1.1, 'between 0 and 1': 0}
    expected = RANGES[name].text
    for value in (outside.get(expected, math.inf), math.nan, math.inf, 2**31, 1e39):
        if type(value) is int and expected == 'a number of float32':
            continue
        assert refusal(check_ranges, {name: value}).startswith(f'{name} must be ')
    check_ranges({name: 0.5 if expected in ('in [0, 1)', 'between 0 and 1') else 1})


def test_what_is_no_number_or_has_no_range_is_left_to_others():
    check_ranges({'seed': None, 'model.pooler': True, 'task': 'x', 'mine.own': -1})


@pytest.mark.parametrize(
    ('values', 'words'),
    [
        ({'rope': RopeConfig(base=0.0)}, ['model.rope.base', 'positive']),
        ({'rope': RopeConfig(factor=0.5)}, ['model.rope.factor', 'at least 1']),
        ({'rope': RopeConfig(low_frequency_factor=4.0)}, ['low_frequency_factor', 'less than']),
        ({'rope': RopeConfig(beta_fast=1.0)}, ['beta_slow', 'less than', 'beta_fast']),
        ({'rope': RopeConfig(scaling='ntk', fraction=1 / 32)}, ["'ntk'", 'not 2']),
        ({'rope': RopeConfig(scaling='dynamic', fraction=1 / 32)}, ["'dynamic'", 'not 2']),
        ({'rope': RopeConfig(attention_factor=0.0)}, ['model.rope.attention_factor']),
        ({'position_offset': -1}, ['model.position_offset', 'at least 0']),
        ({'position': 'relative', 'relative': RelativeConfig(num_buckets=1)}, ['at least 2']),
        (
            {'position': 'relative', 'relative': RelativeConfig(max_distance=16)},
            ['num_buckets', 'max_distance 16', 'not 32'],
        ),
        (
            {
                'position': 'relative',
                'topology': 'encoder',
                'relative': RelativeConfig(num_buckets=3),
            },
            ['at least 4'],
        ),
        ({'attention_softcap': 0.0}, ['model.attention_softcap']),
        ({'num_token_types': -1}, ['model.num_token_types']),
    ],
)
def test_numbers_that_the_functions_would_refuse_are_refused_with_the_config(
    values, words, refusal
):
    message = refusal(config, **values)
    for word in words:
        assert word in message
