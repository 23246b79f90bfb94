"""Loading and saving: what is refused by name, scanned layers, precision."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_files import MODELS, publish

from transformer.config import RopeConfig, TransformerConfig
from transformer.data.tokenizers import train_tokenizer
from transformer.interop import FAMILIES, load_pretrained, read_pretrained, save_pretrained
from transformer.interop.family import Published
from transformer.interop.pretrained import write_config
from transformer.interop.rules import ACTIVATIONS, SCALINGS, label_names
from transformer.modules import stack_layers


def test_every_family_has_a_tiny_model():
    assert {golden['config']['model_type'] for golden in MODELS.values()} == FAMILIES.keys()


@pytest.mark.parametrize(
    ('name', 'changes', 'words'),
    [
        ('llama', {'model_type': 'lama'}, ['model_type', "'lama'", "Did you mean 'llama'?"]),
        ('llama', {'model_type': 'absent'}, ['model_type', 'None']),
        ('llama', {'hidden_act': 'mish'}, ['hidden_act', "'mish'", 'silu']),
        ('llama', {'hidden_size': 'absent'}, ['no hidden_size']),
        ('llama', {'rope_scaling': {'type': 'longrope'}}, ['rope_type', "'longrope'", 'yarn']),
        ('llama', {'rope_scaling': {'type': 'linear'}}, ["'linear'", 'without factor']),
        (
            'llama',
            {'rope_scaling': {'type': 'yarn', 'factor': 2.0, 'truncate': False}},
            ['truncate'],
        ),
        ('qwen2', {'layer_types': ['chunked_attention'] * 2}, ['layer_types', 'chunked']),
        ('gpt2', {'scale_attn_by_inverse_layer_idx': True}, ['scale_attn_by_inverse', 'True']),
        ('gemma', {'use_bidirectional_attention': True}, ['use_bidirectional_attention']),
        ('gemma3', {'attn_logit_softcapping': 2.0}, ['attn_logit_softcapping', '2.0']),
        ('bloom', {'apply_residual_connection_post_layernorm': True}, ['post_layernorm']),
        ('bert', {'position_embedding_type': 'relative_key'}, ['relative_key', "'absolute'"]),
        ('bert', {'is_decoder': True}, ['is_decoder']),
        ('roberta', {'hidden_act': 'relu'}, ['hidden_act', "'gelu'"]),
        ('t5', {'feed_forward_proj': 'gated-mish'}, ['feed_forward_proj', "'mish'"]),
        ('bart', {'decoder_ffn_dim': 41}, ['decoder_ffn_dim 41', 'encoder_ffn_dim 40']),
        ('marian', {'normalize_before': True}, ['normalize_before']),
        (
            'gemma3',
            {'rope_parameters': {'sliding_attention': {'rope_type': 'linear', 'factor': 2.0}}},
            ['sliding_attention'],
        ),
    ],
)
def test_what_we_do_not_have_is_refused_by_name(tmp_path, name, changes, words, refusal):
    if 'rope_scaling' in changes:
        changes = changes | {'rope_parameters': 'absent'}
    message = refusal(load_pretrained, publish(tmp_path, name, changes))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ('name', 'tensors', 'words'),
    [
        ('llama', {'model.norm.weight': 'absent'}, ['has no model.norm.weight']),
        ('llama', {'model.norm.bias': [48]}, ['has model.norm.bias', 'no place']),
        ('llama', {'model.layers.2.mlp.up_proj.weight': [40, 48]}, ['layers.2.mlp.up_proj']),
        ('llama', {'model.norm.weight': [47]}, ['model.norm.weight', '[47]', '[48]']),
        ('gpt2', {'lm_head.weight': [29, 48]}, ['lm_head.weight differs', 'wte.weight']),
        ('bert', {'qa_outputs.weight': [2, 48]}, ['qa_outputs.weight']),
        ('distilbert', {'pre_classifier.weight': [48, 48]}, ['pre_classifier.weight']),
    ],
)
def test_leftovers_and_gaps_are_named(tmp_path, name, tensors, words, refusal):
    message = refusal(load_pretrained, publish(tmp_path, name, tensors=tensors))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ('name', 'cls'),
    [
        ('bert-classifier', 'BertForTokenClassification'),  # with the same tensors
        ('bert-classifier', 'BertForMultipleChoice'),
        ('bert', 'BertForNextSentencePrediction'),
        ('roberta-classifier', 'RobertaForQuestionAnswering'),
        ('llama', 'LlamaForSequenceClassification'),
    ],
)
def test_heads_that_are_not_ours_are_refused_by_name(tmp_path, name, cls, refusal):
    folder = publish(tmp_path, name, {'architectures': [cls]})
    message = refusal(load_pretrained, folder)
    assert cls in message
    assert FAMILIES[MODELS[name]['config']['model_type']].classes['none'] in message


def test_a_classifier_without_its_pooler_is_not_ours(tmp_path, refusal):
    pooler = {f'bert.pooler.dense.{leaf}': 'absent' for leaf in ('weight', 'bias')}
    folder = publish(tmp_path, 'bert-classifier', {'architectures': 'absent'}, pooler)
    assert 'has classifier.' in refusal(load_pretrained, folder)


@pytest.mark.parametrize('name', ['bert-classifier', 'distilbert-classifier'])
def test_labels_come_along(tmp_path, name):
    folder = publish(tmp_path / 'published', name)
    config, params, _ = load_pretrained(folder)
    numbers = [str(i) for i in range(5)] if name == 'bert-classifier' else None
    expected = numbers or [f'LABEL_{i}' for i in range(4)]
    assert read_pretrained(folder).labels == tuple(expected)
    family = MODELS[name]['config']['model_type']
    save_pretrained(tmp_path / 'ours', config, params, None, family, labels=['no', 'yes'])
    named = read_pretrained(tmp_path / 'ours').labels
    assert named[:3] == ('no', 'yes', 'LABEL_2')
    assert len(named) == config.num_classes
    names = json.loads((tmp_path / 'ours' / 'config.json').read_text())['label2id']
    assert names['yes'] == 1
    assert read_pretrained(publish(tmp_path / 'bert', 'bert')).labels == ()


def test_labels_are_in_the_order_of_their_numbers():
    fields = {'id2label': {str(i): f'{i}' for i in (10, 9, 2, 1, 0, 3, 4, 5, 6, 7, 8)}}
    assert label_names(Published(fields)) == tuple(str(i) for i in range(11))
    assert label_names(Published({'num_labels': 3})) == ('LABEL_0', 'LABEL_1', 'LABEL_2')


def test_many_leftovers_are_counted(tmp_path, refusal):
    extra = {f'adapter.{i}.weight': [2, 2] for i in range(9)}
    assert 'and 3 more' in refusal(load_pretrained, publish(tmp_path, 'llama', tensors=extra))


def test_buffers_and_equal_copies_are_no_leftovers(tmp_path):
    buffers = {'transformer.h.0.attn.bias': [1, 1, 32, 32]}
    folder = publish(tmp_path, 'gpt2', tensors=buffers)
    tensors = load_file(folder / 'model.safetensors')
    tensors['lm_head.weight'] = tensors['transformer.wte.weight']
    save_file(tensors, folder / 'model.safetensors')
    config, params, _ = load_pretrained(folder)
    assert config.tie_embeddings
    assert 'head' not in params


@pytest.mark.parametrize('name', ['llama', 'gemma3', 't5', 'bert'])
def test_scanned_layers_are_the_stacked_ones(tmp_path, name):
    """Loaded stacked, and saved from there as from unrolled layers."""
    folder = publish(tmp_path / 'published', name)
    config, params, _ = load_pretrained(folder)
    scanned, stacked, _ = load_pretrained(folder, scan_layers=True)
    assert scanned == dataclasses.replace(config, scan_layers=True)
    expected = stack_layers(params, config)
    assert jax.tree.structure(stacked) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, stacked, expected)
    save_pretrained(tmp_path / 'ours', scanned, stacked, None, MODELS[name]['config']['model_type'])
    ours = load_file(tmp_path / 'ours' / 'model.safetensors')
    for key, tensor in load_file(folder / 'model.safetensors').items():
        np.testing.assert_array_equal(ours[key], tensor)


def test_precision_is_that_asked_for(tmp_path):
    folder = publish(tmp_path / 'published', 'gpt2')
    config, params, _ = load_pretrained(folder, dtype='bfloat16', param_dtype='bfloat16')
    assert (config.dtype, config.param_dtype) == ('bfloat16', 'bfloat16')
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {'bfloat16'}
    save_pretrained(tmp_path / 'ours', config, params, None, 'gpt2')
    assert json.loads((tmp_path / 'ours' / 'config.json').read_text())['dtype'] == 'bfloat16'
    _, again, _ = load_pretrained(tmp_path / 'ours')  # a bfloat16 file, as float32
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(np.float32)), again, params)


@pytest.mark.parametrize(
    ('family', 'changes', 'words'),
    [
        ('llama', {'qk_norm': True}, ['llama', 'model.qk_norm']),
        ('llama', {'num_token_types': 2}, ['no place', 'token_types/table']),
        ('llama', {'norm_offset': 1.0}, ['model.norm_offset', '1.0']),
        ('llama', {'logits_softcap': 3.0}, ['model.logits_softcap']),
        ('llama', {'window': 4}, ['model.window']),
        ('llama', {'rope': RopeConfig(scaling='ntk', factor=2.0)}, ["'ntk'"]),
        ('llama', {'rope': RopeConfig(layout='interleaved')}, ['model.rope.layout']),
        ('llama', {'position': 'alibi'}, ['model.position', "'alibi'"]),
        ('llama', {'activation': 'relu_squared', 'attention_bias': 'qkv'}, ["'qkv'"]),
        ('llama', {'head': 'none', 'tie_embeddings': False, 'norm_eps': 1e-3}, []),
        ('llama', {'topology': 'encoder', 'head': 'masked_lm'}, ['model.head', "'masked_lm'"]),
        ('mistral', {'window': 4, 'layer_pattern': ('local', 'global')}, ['layer_pattern']),
        ('lama', {}, ["Did you mean 'llama'?"]),
    ],
)
def test_a_family_refuses_to_say_what_it_cannot(tmp_path, family, changes, words, refusal):
    sizes = {'vocab_size': 29, 'num_layers': 2, 'embed_dim': 48, 'num_heads': 3, 'mlp_dim': 40}
    config = TransformerConfig(**sizes | changes)
    if not words:
        write_config(FAMILIES[family], config)
        return
    message = refusal(save_pretrained, tmp_path / 'new', config, {}, None, family)
    for word in words:
        assert word in message
    assert not (tmp_path / 'new').exists()


def test_parameters_of_another_config_are_refused(tmp_path, refusal):
    config, params, _ = load_pretrained(publish(tmp_path / 'published', 'llama'))
    other = dataclasses.replace(config, mlp_dim=41)
    message = refusal(save_pretrained, tmp_path / 'new', other, params, None, 'llama')
    assert 'not those of the config' in message
    assert not (tmp_path / 'new').exists()


def test_the_tokenizer_goes_along(tmp_path):
    config, params, _ = load_pretrained(publish(tmp_path / 'published', 'gpt2'))
    tokenizer = train_tokenizer('chars', ['abcdefghij'])
    save_pretrained(tmp_path / 'ours', config, params, tokenizer, 'gpt2', {'pad_token_id': 2})
    *_, again = load_pretrained(tmp_path / 'ours')
    assert again.to_json() == tokenizer.to_json()
    fields = json.loads((tmp_path / 'ours' / 'config.json').read_text())
    assert (fields['eos_token_id'], fields['pad_token_id']) == (tokenizer.eos_id, 2)
    fields = json.loads((tmp_path / 'ours' / 'tokenizer_config.json').read_text())
    assert fields['eos_token'] == '<|endoftext|>'


def test_names_in_the_tables_are_ours():
    hints = TransformerConfig.__annotations__
    assert set(ACTIVATIONS.values()) == set(hints['activation'].__args__)
    assert set(SCALINGS.values()) | {'ntk'} == set(RopeConfig.__annotations__['scaling'].__args__)
