"""Tiny published models: their configs, and weights and inputs that every platform makes alike.

Nothing is square: width 48, 3 heads (of 20 where the family lets them be), 1 key head.
"""

import json
import pathlib
import zlib
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = pathlib.Path(__file__).parent / 'golden'
V = 29
SIZES = {
    'vocab_size': V,
    'hidden_size': 48,
    'num_hidden_layers': 2,
    'num_attention_heads': 3,
    'intermediate_size': 40,
    'max_position_embeddings': 32,
}
GROUPED = SIZES | {'num_key_value_heads': 1, 'head_dim': 20}
GPT2 = {'vocab_size': V, 'n_embd': 48, 'n_layer': 2, 'n_head': 3, 'n_positions': 32, 'n_inner': 40}
OPT = {
    'vocab_size': V,
    'hidden_size': 48,
    'num_hidden_layers': 2,
    'num_attention_heads': 3,
    'ffn_dim': 40,
    'max_position_embeddings': 32,
}
DISTILBERT = {
    'vocab_size': V,
    'dim': 48,
    'n_layers': 2,
    'n_heads': 3,
    'hidden_dim': 40,
    'max_position_embeddings': 32,
}
T5 = {
    'vocab_size': V,
    'd_model': 48,
    'd_kv': 20,
    'd_ff': 40,
    'num_layers': 1,
    'num_decoder_layers': 2,
    'num_heads': 3,
    'relative_attention_num_buckets': 8,
    'relative_attention_max_distance': 5,
    'decoder_start_token_id': 0,
}
BART = {
    'vocab_size': V,
    'd_model': 48,
    'encoder_layers': 1,
    'decoder_layers': 2,
    'encoder_ffn_dim': 40,
    'decoder_ffn_dim': 40,
    'encoder_attention_heads': 3,
    'decoder_attention_heads': 3,
    'max_position_embeddings': 32,
}
MARIAN = BART | {'pad_token_id': V - 1, 'decoder_start_token_id': V - 1, 'scale_embedding': True}


class Variant(NamedTuple):
    """A class of `transformers`, its config, and tensors that its file has in addition."""

    cls: str
    fields: dict
    extra: dict = {}  # noqa: RUF012


def _rope(kind, **numbers):
    return {'rope_parameters': {'rope_type': kind, 'rope_theta': 500.0} | numbers}


VARIANTS = {
    'gpt2': Variant('GPT2LMHeadModel', GPT2),
    'gpt2-unscaled': Variant(
        'GPT2LMHeadModel',
        GPT2
        | {
            'scale_attn_weights': False,
            'activation_function': 'relu',
            'tie_word_embeddings': False,
            'layer_norm_epsilon': 1e-2,
        },
    ),
    'llama': Variant('LlamaForCausalLM', GROUPED),
    'llama-llama3': Variant(
        'LlamaForCausalLM',
        GROUPED
        | {'attention_bias': True, 'mlp_bias': True, 'tie_word_embeddings': True}
        | _rope(
            'llama3',
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    'llama-linear': Variant('LlamaForCausalLM', GROUPED | _rope('linear', factor=3.0)),
    'llama-dynamic': Variant(
        'LlamaForCausalLM', GROUPED | {'max_position_embeddings': 5} | _rope('dynamic', factor=4.0)
    ),
    'llama-yarn': Variant(
        'LlamaForCausalLM',
        GROUPED | _rope('yarn', factor=4.0, original_max_position_embeddings=8),
    ),
    'llama-yarn-scales': Variant(
        'LlamaForCausalLM',
        GROUPED
        | _rope(
            'yarn',
            factor=4.0,
            original_max_position_embeddings=8,
            mscale=1.5,
            mscale_all_dim=0.5,
            beta_fast=4.0,
            beta_slow=0.5,
        ),
    ),
    'mistral': Variant('MistralForCausalLM', GROUPED | {'sliding_window': 3}),
    'qwen2': Variant(
        'Qwen2ForCausalLM',
        GROUPED | {'use_sliding_window': True, 'sliding_window': 3, 'max_window_layers': 1},
    ),
    'qwen3': Variant('Qwen3ForCausalLM', GROUPED | {'attention_bias': True}),
    'qwen3-windows': Variant(
        'Qwen3ForCausalLM',
        GROUPED | {'use_sliding_window': True, 'sliding_window': 3, 'max_window_layers': 1},
    ),
    'gemma': Variant('GemmaForCausalLM', GROUPED),
    'gemma-biased': Variant(
        'GemmaForCausalLM', GROUPED | {'attention_bias': True, 'tie_word_embeddings': False}
    ),
    'gemma2': Variant(
        'Gemma2ForCausalLM',
        GROUPED
        | {
            'sliding_window': 3,
            'query_pre_attn_scalar': 7,
            'attn_logit_softcapping': 2.0,
            'final_logit_softcapping': 3.0,
        },
    ),
    'gemma3': Variant(
        'Gemma3ForCausalLM',
        GROUPED
        | {
            'num_hidden_layers': 3,
            'layer_types': ['sliding_attention', 'sliding_attention', 'full_attention'],
            'sliding_window': 3,
            'query_pre_attn_scalar': 7,
            'rope_parameters': {
                'full_attention': {'rope_type': 'linear', 'rope_theta': 500.0, 'factor': 8.0},
                'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
            },
        },
    ),
    'gemma3-capped': Variant(
        'Gemma3ForCausalLM',
        GROUPED
        | {
            'attention_bias': True,
            'sliding_window': 3,
            'final_logit_softcapping': 3.0,
        },
    ),
    'gpt_neox': Variant('GPTNeoXForCausalLM', SIZES),
    'gpt_neox-sequential': Variant(
        'GPTNeoXForCausalLM',
        SIZES
        | {'use_parallel_residual': False, 'attention_bias': False, 'tie_word_embeddings': True}
        | _rope('default', partial_rotary_factor=0.5),
    ),
    'bloom': Variant(
        'BloomForCausalLM',
        {'vocab_size': V, 'hidden_size': 48, 'n_layer': 2, 'n_head': 3, 'seq_length': 32},
    ),
    'opt': Variant('OPTForCausalLM', OPT),
    'opt-post': Variant('OPTForCausalLM', OPT | {'do_layer_norm_before': False}),
    'opt-narrow': Variant(  # as OPT-350m
        'OPTForCausalLM', OPT | {'do_layer_norm_before': False, 'word_embed_proj_dim': 20}
    ),
    'opt-narrow-untied': Variant(
        'OPTForCausalLM', OPT | {'word_embed_proj_dim': 20, 'tie_word_embeddings': False}
    ),
    'bert': Variant('BertForMaskedLM', SIZES),
    'bert-pooler': Variant('BertModel', SIZES | {'hidden_act': 'gelu_new'}),
    'bert-pretraining': Variant('BertForPreTraining', SIZES | {'type_vocab_size': 3}),
    'bert-classifier': Variant(
        'BertForSequenceClassification', SIZES | {'id2label': {i: str(i) for i in range(5)}}
    ),
    'roberta': Variant('RobertaForMaskedLM', SIZES | {'type_vocab_size': 1}),
    'roberta-classifier': Variant(
        'RobertaForSequenceClassification', SIZES | {'type_vocab_size': 1, 'pad_token_id': 2}
    ),
    'distilbert': Variant('DistilBertForMaskedLM', DISTILBERT),
    'distilbert-classifier': Variant(
        'DistilBertForSequenceClassification', DISTILBERT | {'num_labels': 4}
    ),
    't5': Variant('T5ForConditionalGeneration', T5),
    't5-1.1': Variant(
        'T5ForConditionalGeneration',
        T5 | {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False},
        {'lm_head.weight': (V, 48)},
    ),
    'bart': Variant('BartForConditionalGeneration', BART),
    'bart-scaled': Variant(
        'BartForConditionalGeneration',
        BART | {'scale_embedding': True, 'activation_function': 'relu'},
    ),
    'marian': Variant('MarianMTModel', MARIAN | {'activation_function': 'swish'}),
    'marian-two-tables': Variant(
        'MarianMTModel',
        MARIAN | {'decoder_vocab_size': V + 2, 'share_encoder_decoder_embeddings': False},
    ),
}


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights of the tensor with this name. RandomState's streams never change."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1 and name.endswith('weight'):  # a norm's
        return (1 + 0.3 * values).astype(np.float32)
    return (0.15 * values).astype(np.float32)


def write_model(folder: pathlib.Path, golden: dict) -> pathlib.Path:
    """The published folder of a model whose config and shapes of tensors are in `golden`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(golden['config']))
    tensors = {name: weight(name, tuple(shape)) for name, shape in golden['tensors'].items()}
    save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})
    return folder


def read_golden() -> tuple[dict, dict[str, np.ndarray]]:
    """Configs and shapes by variant, and the outputs, named 'variant/side/output'."""
    models = json.loads((GOLDEN / 'models.json').read_text())
    return models, load_file(GOLDEN / 'outputs.safetensors')


def make_batch(side: str, golden: dict) -> dict[str, np.ndarray]:
    """Two rows of 7 and 4 tokens, padded on a side; for two stacks, 6 and 3 for the encoder.

    A decoder beside an encoder is padded on the right. Where the published model counts by index,
    positions count the padding before a row too.
    """
    if golden['config'].get('is_encoder_decoder'):
        encoder = _rows((6, 3), side, 'encoder_', golden['by_index'])
        return encoder | _rows((5, 4), 'right', '', golden['by_index'])
    batch = _rows((7, 4), side, '', golden['by_index'])
    types = golden['config'].get('type_vocab_size', 0)
    if types:
        batch['token_types'] = np.arange(14).reshape(2, 7) % types
    return batch


def _rows(lengths, side, prefix, index_positions):
    longest = max(lengths)
    index = np.broadcast_to(np.arange(longest), (2, longest))
    starts = np.array([longest - n if side == 'left' else 0 for n in lengths])[:, None]
    valid = (index >= starts) & (index < starts + np.array(lengths)[:, None])
    tokens = np.random.RandomState(len(prefix)).randint(3, V - 2, (2, longest))
    positions = index if index_positions else np.where(valid, index - starts, 0)
    return {
        f'{prefix}tokens': np.where(valid, tokens, 1),
        f'{prefix}positions': positions,
        f'{prefix}segment_ids': valid.astype(np.int32),
    }
