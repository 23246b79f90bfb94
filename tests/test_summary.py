"""The memory of a training step against hand counts and XLA, and what the command prints."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from configs import base
from transformer.config import TransformerConfig, transformer_config
from transformer.errors import UserError
from transformer.flops import COMPONENTS, parameter_shapes
from transformer.modules import Transformer
from transformer.summary import activation_bytes_per_token, main, summarize, vocab_size
from transformer.training.step import Recipe, hyperparameters, loss_sums

ROOT = Path(__file__).parents[1]
SIZES = {'vocab_size': 100, 'embed_dim': 64, 'num_heads': 4, 'mlp_dim': 256, 'num_layers': 2}


def small_config(**model):
    """An experiment with a small model."""
    config = base.get_config()
    config.model.update(SIZES | model)
    config.data.length = 32
    return config


@functools.cache
def kept(length=32, dropout=0.0, chunk=0, **model):
    """Bytes a token that a small model keeps: without remat, with full remat, and in the head."""
    config = small_config(attention_implementation='xla', **model)
    config.data.length, config.dropout.residual, config.loss.chunk = length, dropout, chunk
    architecture = transformer_config(config.model)
    result = activation_bytes_per_token(config, architecture)
    return result['layers']['none'], result['layers']['full'], result['head']


def test_full_remat_keeps_the_inputs_of_layers():
    assert kept(num_layers=5)[1] - kept()[1] == 3 * 64 * 4  # float32 [B, T, D]


def test_plain_attention_keeps_its_weights():
    """A matrix [B, N, T, T] makes bytes a token grow with the length."""
    growth = kept(length=64)[0] - kept()[0]
    assert growth >= 2 * 4 * 32 * 4  # layers, heads, keys, float32
    assert kept(length=128)[0] - kept(length=64)[0] == 2 * growth


def test_chunked_logits_are_not_kept():
    assert kept()[2] - kept(chunk=2)[2] >= 100 * 4


def test_bfloat16_and_dropout_change_what_is_kept():
    assert kept(dtype='bfloat16')[0] < kept()[0] < kept(dropout=0.1)[0]


def test_activations_are_what_xla_keeps():
    """XLA's temporaries are those activations and what the layer in progress needs."""
    config = small_config(num_layers=8, attention_implementation='xla')
    config.data.length, rows = 64, 16
    model = TransformerConfig(**SIZES | {'num_layers': 8}, attention_implementation='xla')
    activations = activation_bytes_per_token(config, model)
    counted = (activations['layers']['none'] + activations['head']) * rows * 64
    tokens = jax.ShapeDtypeStruct((rows, 64), jnp.int32)
    weights = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    batch = {'tokens': tokens, 'targets': tokens, 'weights': weights}

    def loss(params, batch):
        return loss_sums(params, batch, hyperparameters(config), Recipe(Transformer(model)), None)

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    compiled = gradient.lower(parameter_shapes(model), batch).compile()
    assert counted <= compiled.memory_analysis().temp_size_in_bytes <= 1.2 * counted


@pytest.mark.parametrize(('optimizer', 'copies'), [('adamw', 2), ('lion', 1)])
def test_memory_of_parameters_gradients_and_optimizer(optimizer, copies):
    config = small_config()
    config.optimizer.name = optimizer
    config.train.accumulation = 4
    summary = summarize(config)
    memory, size = summary['memory_bytes'], 4 * summary['parameters']['total']
    assert memory['parameters'] == size
    assert memory['gradients'] == 2 * size
    assert copies * size <= memory['optimizer'] <= copies * size + 16  # and a step counter
    activations = summary['activation_bytes_per_token']
    assert summary['rows'] == 4
    assert memory['layer_activations'] == activations['layers']['none'] * 4 * 32
    assert memory['head_activations'] == activations['head'] * 4 * 32


def test_a_billion_parameters_are_summarised_without_allocating_them():
    program = (
        'import resource, sys\n'
        'from transformer.summary import main\n'
        "main(['--config=configs/llama_7b.py', '--json'])\n"
        'print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n'
    )
    command = [sys.executable, '-c', program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    summary = json.loads(result.stdout)
    assert int(result.stderr.split()[-1]) < 2e6  # kB; the parameters alone are 27 GB
    for name in 'parameters', 'forward_flops_per_token', 'memory_bytes':
        parts = summary[name]
        total = parts.pop('total')
        assert sum(parts.values()) == total > 1e9
    assert summary['parameters'].keys() == COMPONENTS.keys()
    assert summary['memory_bytes']['parameters'] == 4 * 6_738_415_616
    assert summary['complexity']['crossing_length'] == 3 * 11_008 - 1
    # Twice the parameters that are multiplied, and attention.
    flops = 2 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096) + 32 * 4 * 4096 * 2049 / 2
    assert sum(summary['forward_flops_per_token'].values()) == flops


def test_tables_show_the_numbers(capsys):
    main(['--config=configs/bert_base.py', '--config.data.length=96'])
    shown = capsys.readouterr().out
    for number in '109,482,240', '3,072', '96':  # parameters, crossing, length
        assert number in shown
    assert not re.search(r'\bnan\b|\[bold', shown)


def test_vocabulary_is_the_models_or_else_the_tokenizers():
    config = base.get_config()
    assert vocab_size(config) == config.data.vocab_size
    config.data.tokenizer = 'bytes'
    assert vocab_size(config) == 257
    config.data.tokenizer = 'chars'
    with pytest.raises(UserError, match=r'--config\.model\.vocab_size=N'):
        vocab_size(config)
    config.model.vocab_size = 70
    assert vocab_size(config) == 70


def test_a_wrong_optimizer_is_named():
    config = small_config()
    config.optimizer.name = 'adamv'
    with pytest.raises(UserError, match=r"optimizer\.name .* Did you mean 'adamw'"):
        summarize(config)
