"""Numbers of parameters of well-known checkpoints, from the fields of their config.json alone."""

import pathlib

import pytest

from transformer.flops import count_parameters
from transformer.interop import FAMILIES
from transformer.interop.pretrained import read_config

DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'models.md'


def llama_like(vocab, width, inner, layers, heads, kv_heads, **more):
    return {
        'vocab_size': vocab,
        'hidden_size': width,
        'intermediate_size': inner,
        'num_hidden_layers': layers,
        'num_attention_heads': heads,
        'num_key_value_heads': kv_heads,
        'max_position_embeddings': 4096,
    } | more


def bert_like(vocab, positions, types):
    return {
        'vocab_size': vocab,
        'hidden_size': 768,
        'intermediate_size': 3072,
        'num_hidden_layers': 12,
        'num_attention_heads': 12,
        'max_position_embeddings': positions,
        'type_vocab_size': types,
    }


def bart_like(vocab, width, heads, inner):
    fields = {'vocab_size': vocab, 'd_model': width, 'max_position_embeddings': 1024}
    for stack in 'encoder', 'decoder':
        fields |= {f'{stack}_layers': 6, f'{stack}_ffn_dim': inner}
        fields[f'{stack}_attention_heads'] = heads
    return fields


def t5_like(width, inner, layers, heads, **more):
    sizes = {'d_model': width, 'd_ff': inner, 'num_layers': layers, 'num_heads': heads}
    return {'vocab_size': 32128, 'd_kv': 64} | sizes | more


UNTIED = ('lm_head.weight',)
# (checkpoint, model_type, fields, tensors that tell the head, published number of parameters)
CHECKPOINTS = [
    ('gpt2', 'gpt2', {'vocab_size': 50257, 'n_embd': 768, 'n_layer': 12, 'n_head': 12}
     | {'n_positions': 1024}, (), 124_439_808),
    ('Llama-2-7b', 'llama', llama_like(32000, 4096, 11008, 32, 32, 32), UNTIED, 6_738_415_616),
    ('Llama-3.1-8B', 'llama', llama_like(128256, 4096, 14336, 32, 32, 8), UNTIED, 8_030_261_248),
    ('Llama-3.2-1B', 'llama', llama_like(128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True),
     (), 1_235_814_400),
    ('Mistral-7B', 'mistral', llama_like(32000, 4096, 14336, 32, 32, 8), UNTIED, 7_241_732_096),
    ('Qwen2.5-0.5B', 'qwen2', llama_like(151936, 896, 4864, 24, 14, 2, tie_word_embeddings=True),
     (), 494_032_768),
    ('Qwen3-0.6B', 'qwen3', llama_like(151936, 1024, 3072, 28, 16, 8, tie_word_embeddings=True),
     (), 596_049_920),
    ('gemma-2b', 'gemma', llama_like(256000, 2048, 16384, 18, 8, 1), (), 2_506_172_416),
    ('gemma-2-2b', 'gemma2', llama_like(256000, 2304, 9216, 26, 8, 4), (), 2_614_341_888),
    ('gemma-3-1b', 'gemma3_text', llama_like(262144, 1152, 6912, 26, 4, 1), (), 999_885_952),
    ('pythia-160m', 'gpt_neox', llama_like(50304, 768, 3072, 12, 12, 12), ('embed_out.weight',),
     162_322_944),
    ('bloom-560m', 'bloom', {'vocab_size': 250880, 'hidden_size': 1024, 'n_layer': 24}
     | {'n_head': 16}, (), 559_214_592),
    ('opt-125m', 'opt', llama_like(50272, 768, 3072, 12, 12, 12, ffn_dim=3072)
     | {'max_position_embeddings': 2048}, (), 125_239_296),
    ('opt-350m', 'opt', llama_like(50272, 1024, 4096, 24, 16, 16, ffn_dim=4096)
     | {'max_position_embeddings': 2048, 'word_embed_proj_dim': 512}
     | {'do_layer_norm_before': False}, (), 331_196_416),
    ('bert-base-uncased', 'bert', bert_like(30522, 512, 2), ('bert.pooler.dense.weight',),
     109_482_240),
    ('roberta-base', 'roberta', bert_like(50265, 514, 1), ('roberta.pooler.dense.weight',),
     124_645_632),
    ('distilbert-base-uncased', 'distilbert', {'vocab_size': 30522, 'dim': 768, 'n_layers': 6}
     | {'n_heads': 12, 'hidden_dim': 3072, 'max_position_embeddings': 512}, (), 66_362_880),
    ('t5-small', 't5', t5_like(512, 2048, 6, 8), (), 60_506_624),
    ('t5-v1_1-small', 't5', t5_like(512, 1024, 8, 6, feed_forward_proj='gated-gelu'), UNTIED,
     76_961_152),
    ('bart-base', 'bart', bart_like(50265, 768, 12, 3072), (), 139_420_416),
    ('opus-mt-en-de', 'marian', bart_like(58101, 512, 8, 2048), (), 73_886_208),
]  # fmt: skip


@pytest.mark.parametrize(
    ('name', 'family', 'fields', 'tensors', 'expected'),
    CHECKPOINTS,
    ids=[row[0] for row in CHECKPOINTS],
)
def test_counts_are_the_published_ones(name, family, fields, tensors, expected):
    config = read_config(FAMILIES[family], fields, dict.fromkeys(tensors))
    assert count_parameters(config) == expected
    assert f'| {name} | {expected:,} |' in DOCS.read_text(encoding='utf-8')
