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
from transformer.memory import activation_bytes_per_token
from transformer.modules import Transformer
from transformer.summary import main, summarize, vocab_size
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
def kept(length=32, dropout=None, chunk=0, **model):
    """Bytes a token that a small model keeps, by component."""
    config = small_config(attention_implementation='xla', **model)
    config.data.length, config.loss.chunk = length, chunk
    if dropout:
        config.dropout[dropout] = 0.1
    return activation_bytes_per_token(config, transformer_config(config.model))


def total(**changes):
    return sum(kept(**changes).values())


def residual_bytes_per_token(rows=2, **model):
    """What jax.vjp of the whole step keeps, its arrays added up without asking whose they are."""
    config = small_config(attention_implementation='xla', **model)
    architecture = transformer_config(config.model)

    def backward(params, batch):
        recipe = Recipe(Transformer(architecture))
        arguments = batch, hyperparameters(config), recipe, None
        return jax.vjp(lambda params: loss_sums(params, *arguments)[0], params)[1]

    sizes = []
    for number in rows, 2 * rows:
        tokens = jax.ShapeDtypeStruct((number, 32), jnp.int32)
        names = ('tokens', 'segment_ids', 'targets', 'encoder_tokens', 'encoder_segment_ids')
        batch = dict.fromkeys(names, tokens)
        batch['weights'] = jax.ShapeDtypeStruct((number, 32), jnp.float32)
        residuals = jax.eval_shape(backward, parameter_shapes(architecture), batch)
        sizes.append(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals)))
    return (sizes[1] - sizes[0]) / rows / 32


@pytest.mark.parametrize(
    'model',
    [
        {},
        {'remat': 'full', 'dtype': 'bfloat16', 'layer_pattern': ('global', 'local'), 'window': 4},
        {
            'topology': 'encoder_decoder',
            'norm_placement': 'post',
            'norm': 'layernorm',
            'position': 'relative',
        },
    ],
)
def test_components_add_up_to_the_residuals_of_the_whole_step(model):
    """Exactly: they are the same arrays, and bytes over 64 tokens are exact in floating point."""
    assert total(**model) == residual_bytes_per_token(**model)


def test_values_belong_to_the_component_that_computes_them():
    """Counted by hand for two layers of 64 in float32, with relu and no positions."""
    bytes_ = kept(feed_forward='mlp', activation='relu', position='none')
    heads, keys, width, inner = 4, 32, 64 * 4, 256 * 4
    assert bytes_['embedding'] == 4  # token ids
    # A layer: queries, keys, values, their weighted sum and the residual sum; weights.
    assert bytes_['attention'] == 2 * (5 * width + heads * keys * 4)
    # A layer: relu's sign and output, the residual sum. Once: relu's zeros, and what the final
    # norm reads.
    assert bytes_['feed_forward'] == 2 * (width + 256 + inner) + inner + width
    # The reshaped features, logits, five numbers and a sign.
    assert bytes_['head'] == width + 100 * 4 + 5 * 4 + 1


@pytest.mark.parametrize(
    ('component', 'changes'),
    [
        ('embedding', {'dropout': 'embedding'}),
        ('attention', {'dropout': 'attention'}),
        ('attention', {'length': 64}),
        ('feed_forward', {'mlp_dim': 260}),
        ('norm', {'norm_placement': 'sandwich'}),
        ('head', {'vocab_size': 101}),
        ('head', {'logits_softcap': 5.0}),
    ],
)
def test_a_change_of_one_component_adds_to_its_share(component, changes):
    before, after = kept(), kept(**changes)
    more = {name for name in COMPONENTS if after[name] > before[name]}
    assert more == {component}


def test_dropout_masks_belong_to_their_sublayers():
    before, after = kept(), kept(dropout='residual')
    more = {name for name in COMPONENTS if after[name] > before[name]}
    assert more == {'attention', 'feed_forward'}


def test_full_remat_keeps_the_inputs_of_layers():
    difference = total(remat='full', num_layers=5) - total(remat='full')
    assert difference == 3 * 64 * 4  # float32 [B, T, D]


def test_plain_attention_keeps_its_weights():
    """A matrix [B, N, T, T] makes bytes a token grow with the length."""
    growth = kept(length=64)['attention'] - kept()['attention']
    assert growth >= 2 * 4 * 32 * 4  # layers, heads, keys, float32
    assert total(length=128) - total(length=64) == 2 * growth


def test_chunked_logits_are_not_kept():
    assert kept()['head'] - kept(chunk=2)['head'] >= 100 * 4 - 64 * 4  # but features in chunks


def test_a_lower_precision_keeps_less():
    assert total(dtype='bfloat16') < total()


def test_activations_are_what_xla_keeps():
    """XLA's temporaries are those activations and what the layer in progress needs."""
    config = small_config(num_layers=8, attention_implementation='xla')
    config.data.length, rows = 64, 16
    model = TransformerConfig(**SIZES | {'num_layers': 8}, attention_implementation='xla')
    activations = activation_bytes_per_token(config, model)
    counted = sum(activations.values()) * rows * 64
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
    assert summary['rows'] == 4
    assert memory['activations'] == summary['activation_bytes_per_token']['total'] * 4 * 32


@pytest.mark.skipif(sys.platform != 'linux', reason='reads the peak memory from /proc')
def test_a_billion_parameters_are_summarised_without_allocating_them():
    program = (
        'import re, sys\n'
        'from transformer.summary import main\n'
        "main(['--config=configs/llama_7b.py', '--json'])\n"
        # Not ru_maxrss, which is at least that of the process that forked this one.
        "status = open('/proc/self/status').read()\n"
        "print(re.search('VmHWM: *([0-9]+)', status.replace('\\t', ' '))[1], file=sys.stderr)\n"
    )
    command = [sys.executable, '-c', program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    summary = json.loads(result.stdout)
    assert int(result.stderr.split()[-1]) < 2e6  # kB; the parameters alone are 27 GB
    by_component = 'parameters', 'forward_flops_per_token', 'activation_bytes_per_token'
    by_remat = summary['activation_bytes_per_token_by_remat']
    assert summary['activation_bytes_per_token']['total'] == by_remat['none']
    assert summary['memory_bytes']['activations'] == by_remat['full'] * 32 * 2048
    for name in *by_component, 'memory_bytes':
        parts = summary[name]
        assert parts.pop('total') == sum(parts.values()) > 1e6
    for name in by_component:
        assert summary[name].keys() == COMPONENTS.keys()
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
    assert not re.search(r'\bnan\b|\[bold|…', shown)


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
