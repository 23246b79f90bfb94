"""Adapters train beside kernels that stay, and merge into them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from transformer.config import TransformerConfig
from transformer.errors import UserError
from transformer.modules import Transformer
from transformer.modules.axes import path_name
from transformer.training.adapters import (
    adapter_scale,
    add_adapters,
    frozen_paths,
    merge_adapters,
)
from transformer.training.experiment import init_params
from transformer.training.optimizers import OPTIMIZERS, make_optimizer
from transformer.training.state import TrainState
from transformer.training.step import Recipe, hyperparameters, loss_sums, train_step

MODEL = Transformer(
    TransformerConfig(vocab_size=11, num_layers=2, embed_dim=8, num_heads=2, mlp_dim=16)
)
HPARAMS = hyperparameters(base.get_config()) | {'warmup_steps': 0, 'learning_rate': 0.1}
RNG = np.random.default_rng(0)
BATCH = {
    'tokens': RNG.integers(0, 11, (2, 6)).astype(np.int32),
    'targets': RNG.integers(0, 11, (2, 6)).astype(np.int32),
    'weights': np.ones((2, 6), np.float32),
}


@pytest.fixture(scope='module')
def params():
    return jax.jit(lambda: init_params(MODEL, 0))()


def config(rank=2, frozen='', **lora):
    result = base.get_config()
    result.lora.rank = rank
    result.lora.update(lora)
    result.train.frozen = frozen
    return result


def named(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def updated(params, config, optimizer='adamw', steps=2):
    recipe = Recipe(
        MODEL,
        optimizer=optimizer,
        schedule='constant',
        frozen=frozen_paths(config),
        adapter_scale=adapter_scale(config.lora),
    )
    transform = make_optimizer(optimizer, HPARAMS, 0.1, recipe.no_decay, recipe.frozen)
    state = TrainState.create(params, transform)
    step = jax.jit(functools.partial(train_step, hparams=HPARAMS, recipe=recipe))
    for _ in range(steps):
        state, sums = step(state, BATCH)
    return state, sums


def test_adapters_change_nothing_at_first(params):
    adapted = add_adapters(params, config().lora, 0)
    assert named(adapted).keys() > named(params).keys()
    merged = merge_adapters(adapted, 8.0)
    jax.tree.map(np.testing.assert_array_equal, merged, params)
    assert add_adapters(params, config(rank=0).lora, 0) is params


def test_a_merged_kernel_is_equation_3(params):
    """Of a scanned kernel [layers, D, N, H], layer by layer in float64."""
    adapted = named(add_adapters(params, config(rank=3).lora, 0))
    name = 'decoder/layers/slot_0/self_attention/query/kernel'
    a, b = adapted[f'{name}_a'], RNG.normal(size=adapted[f'{name}_b'].shape)
    assert (a.shape, b.shape) == ((2, 8, 3), (2, 3, 2, 4))
    assert float(a.std()) == pytest.approx(8**-0.5, rel=0.3)
    tree = {'query': {'kernel': adapted[name], 'kernel_a': a, 'kernel_b': jnp.float32(b)}}
    merged = merge_adapters(tree, 0.5)['query']
    exact = np.float64(adapted[name]) + 0.5 * np.einsum('lir,lrnh->linh', np.float64(a), b)
    assert merged.keys() == {'kernel'}
    np.testing.assert_allclose(merged['kernel'], exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_only_adapters_are_trained(params, optimizer):
    adapted = add_adapters(params, config().lora, 0)
    before = named(adapted)
    state, sums = updated(jax.tree.map(jnp.copy, adapted), config(), optimizer)
    for name, leaf in named(state.params).items():
        changed = not np.array_equal(leaf, before[name])
        assert changed == name.endswith(('kernel_a', 'kernel_b')), name
    assert float(sums['gradient_norm']) > 0


def test_the_gradient_of_an_adapter_is_that_of_its_product(params):
    adapted = add_adapters(params, config(rank=8).lora, 0)
    recipe = Recipe(MODEL, adapter_scale=2.0)
    hparams = HPARAMS | {'weight_decay': 0.0}

    @jax.jit
    def gradients(tree):
        return jax.grad(lambda p: loss_sums(p, BATCH, hparams, recipe, None)[0])(tree)

    grads = named(gradients(adapted))
    name = 'decoder/layers/slot_0/self_attention/value/kernel'
    a = np.asarray(named(adapted)[f'{name}_a'])
    expected = 2.0 * np.einsum('lir,linh->lrnh', a, grads[name])
    np.testing.assert_allclose(grads[f'{name}_b'], expected, rtol=1e-4, atol=1e-6)


def test_frozen_parameters_stay(params):
    before = named(params)
    state, _ = updated(jax.tree.map(jnp.copy, params), config(0, r'embedding|/slot_0/self'))
    for name, leaf in named(state.params).items():
        frozen = 'embedding' in name or '/slot_0/self' in name
        assert np.array_equal(leaf, before[name]) == frozen, name


def test_no_state_is_kept_for_what_is_frozen(params):
    transform = make_optimizer('adamw', HPARAMS, 0.1, 'x', r'embedding')
    sizes = [leaf.size for leaf in jax.tree.leaves(transform.init(params))]
    table = params['embedding']['table'].size
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(size for size in sizes if size > 1) == 2 * (total - table)


def test_paths_that_find_nothing(params):
    with pytest.raises(UserError, match=r"lora\.paths 'nothing' finds no kernel"):
        add_adapters(params, config(paths='nothing').lora, 0)
    assert frozen_paths(config(0)) == ''
    assert dataclasses.replace(Recipe(MODEL), frozen=frozen_paths(config())).frozen
