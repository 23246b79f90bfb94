"""Files of earlier versions of the library: names and fields that mean the same."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_files import publish, published_config
from tiny_models import weight

from transformer.config import TransformerConfig
from transformer.interop import FAMILIES, load_pretrained, read_pretrained
from transformer.interop.pretrained import write_config


def rename(folder, change):
    tensors = load_file(folder / 'model.safetensors')
    save_file({change(k): v for k, v in tensors.items()}, folder / 'model.safetensors')


def test_names_of_early_files(tmp_path):
    """gamma and beta for BERT's norms, and no prefix for a model without a head."""
    folder = publish(tmp_path / 'new', 'bert')
    old = publish(tmp_path / 'old', 'bert')
    rename(
        old,
        lambda name: name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace(
            'LayerNorm.bias', 'LayerNorm.beta'
        ),
    )
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(old)[1], load_pretrained(folder)[1])
    bare = publish(tmp_path / 'bare', 'gpt2')
    rename(bare, lambda name: name.removeprefix('transformer.'))
    _, params, _ = load_pretrained(bare)
    expected = weight('transformer.wte.weight', (29, 48))
    np.testing.assert_array_equal(params['embedding']['table'], expected)


@pytest.mark.parametrize(
    ('name', 'older'),
    [
        ('llama-linear', {'rope_theta': 500.0, 'rope_scaling': {'type': 'linear', 'factor': 3.0}}),
        ('gpt_neox', {'rotary_pct': 0.25, 'rotary_emb_base': 10000.0}),
        (
            'gemma3',
            {
                'rope_theta': 500.0,
                'rope_local_base_freq': 50.0,
                'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
            },
        ),
    ],
)
def test_older_fields_of_rope_say_the_same(name, older):
    assert published_config(name, rope_parameters='absent', **older) == published_config(name)


def test_older_fields_of_bloom_and_gemma_say_the_same():
    older = {'hidden_size': 'absent', 'n_embed': 48, 'n_layer': 'absent', 'num_hidden_layers': 2}
    assert published_config('bloom', **older) == published_config('bloom')
    assert published_config('gemma', hidden_act='gelu') == published_config('gemma')
    pattern = {'layer_types': 'absent', 'sliding_window_pattern': 3}
    assert published_config('gemma3', **pattern) == published_config('gemma3')


def test_fields_of_early_encoder_decoders_are_understood():
    early = {'normalize_before': False, 'add_final_layer_norm': False}
    marian = {'static_position_embeddings': True, 'normalize_embedding': False}
    bart = {'static_position_embeddings': False, 'normalize_embedding': True}
    assert published_config('marian', **early, **marian) == published_config('marian')
    assert published_config('bart', **early, **bart) == published_config('bart')


def test_unset_sizes_are_written_in_full():
    sizes = {'vocab_size': 29, 'num_layers': 2, 'embed_dim': 48, 'num_heads': 3, 'mlp_dim': 40}
    fields = write_config(FAMILIES['llama'], TransformerConfig(**sizes))
    assert (fields['head_dim'], fields['num_key_value_heads']) == (16, 3)


def test_null_is_not_absent():
    assert published_config('mistral', sliding_window=None).window is None
    assert published_config('mistral', sliding_window='absent').window == 4096
    assert published_config('gemma2', attn_logit_softcapping=None).attention_softcap is None
    assert published_config('gemma2', attn_logit_softcapping='absent').attention_softcap == 50


def test_yarn_factor_follows_from_the_lengths():
    scaling = {'rope_type': 'yarn', 'original_max_position_embeddings': 8, 'rope_theta': 9.0}
    assert published_config('llama', rope_parameters=scaling).rope.factor == 4


@pytest.mark.parametrize('given', ['config.json', 'generation_config.json'])
def test_the_token_that_begins_a_target_is_read(tmp_path, given):
    folder = publish(tmp_path, 't5', {'decoder_start_token_id': 'absent'})
    assert read_pretrained(folder).start_id is None
    path = folder / given
    fields = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(fields | {'decoder_start_token_id': 3}))
    assert read_pretrained(folder).start_id == 3
