"""What a task hides in a step: a function of the row alone, whatever the batch around it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from transformer.config import TransformerConfig
from transformer.data.tasks import TASKS
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError
from transformer.modules import Transformer
from transformer.training.experiment import init_params
from transformer.training.objectives import (
    MODELS,
    CorruptSpans,
    MaskTokens,
    check_objective,
    make_corruption,
)
from transformer.training.optimizers import make_optimizer
from transformer.training.state import TrainState
from transformer.training.step import Recipe, eval_step, hyperparameters, train_step

SIZES = {'num_layers': 1, 'embed_dim': 8, 'num_heads': 2, 'mlp_dim': 16, 'scan_layers': False}
ENCODER = TransformerConfig(vocab_size=20, topology='encoder', **SIZES)
CLASSIFIER = dataclasses.replace(ENCODER, head='classifier', num_classes=3, pooling='mean')
BOTH = TransformerConfig(vocab_size=20, topology='encoder_decoder', **SIZES)
RECIPES = {
    'masked_lm': Recipe(Transformer(ENCODER), MaskTokens(19, 18, whole_words=True), 'sgd'),
    'span_corruption': Recipe(
        Transformer(BOTH), CorruptSpans(0.25, 2.0, (16, 17, 18, 19), eos_id=0), 'sgd'
    ),
    'classification': Recipe(Transformer(CLASSIFIER), None, 'sgd'),
}
HPARAMS = hyperparameters(base.get_config()) | {'warmup_steps': 0, 'mask_rate': 0.5}


def make_batch(task, rows=8):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 16, (rows, 16)).astype(np.int32)
    index = np.broadcast_to(np.arange(16, dtype=np.int32), tokens.shape)
    valid = index < rng.integers(4, 17, (rows, 1))
    batch = {
        'tokens': tokens * valid,
        'targets': tokens * valid,
        'weights': valid.astype(np.float32),
        'segment_ids': valid.astype(np.int32),
        'positions': index * valid,
        'word_ids': index // 2 * 2,
        'row': np.arange(rows, dtype=np.int32),
    }
    if task == 'classification':
        batch['targets'] = rng.integers(0, 3, (rows, 1)).astype(np.int32)
        batch['weights'] = np.ones((rows, 1), np.float32)
    return batch


@functools.cache
def initial_state(task):
    recipe = RECIPES[task]
    optimizer = make_optimizer(recipe.optimizer, HPARAMS, 0.0, recipe.no_decay)
    return TrainState.create(jax.jit(lambda: init_params(recipe.model, 0))(), optimizer)


@functools.cache
def run(task, **changes):
    recipe = dataclasses.replace(RECIPES[task], **changes)
    step = jax.jit(functools.partial(train_step, hparams=HPARAMS, recipe=recipe))
    return step(initial_state(task), make_batch(task))


def test_every_task_of_the_data_has_its_models():
    assert MODELS.keys() == TASKS.keys()


@pytest.mark.parametrize('task', RECIPES)
def test_accumulation_changes_nothing(task):
    """Each micro-batch hides in its rows what the whole batch hides in them."""
    whole, sums = run(task)
    parts, part_sums = run(task, accumulation=4)
    assert float(sums['weight']) > 0
    np.testing.assert_allclose(part_sums['weight'], sums['weight'])
    np.testing.assert_allclose(part_sums['loss'], sums['loss'], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        parts.params,
        whole.params,
    )


@pytest.mark.parametrize('task', RECIPES)
def test_devices_change_nothing(task):
    """Four devices hide in their rows what one device hides in them."""
    state, batch = initial_state(task), make_batch(task)
    parts = {name: value.reshape(4, 2, *value.shape[1:]) for name, value in batch.items()}

    def sums(batch):
        return train_step(state, batch, HPARAMS, RECIPES[task], axis_name='data')[1]

    each = jax.jit(jax.vmap(sums, axis_name='data'))(parts)
    _, whole = run(task)
    for name, value in whole.items():
        np.testing.assert_allclose(each[name], np.full(4, value), rtol=1e-5)


@pytest.mark.parametrize('task', RECIPES)
def test_evaluation_does_not_depend_on_the_batches(task):
    step = jax.jit(functools.partial(eval_step, recipe=RECIPES[task]))
    params, batch = initial_state(task).params, make_batch(task)
    whole = step(params, batch)
    parts = [step(params, {k: v[rows] for k, v in batch.items()}) for rows in ([5, 1], [0, 2])]
    parts += [step(params, {k: v[rows] for k, v in batch.items()}) for rows in ([3, 4], [7, 6])]
    for name, value in whole.items():
        np.testing.assert_allclose(sum(part[name] for part in parts), value, rtol=1e-5)


def test_training_hides_anew_at_every_step_and_evaluation_never_does():
    step = jax.jit(functools.partial(train_step, hparams=HPARAMS, recipe=RECIPES['masked_lm']))
    state, batch = initial_state('masked_lm'), make_batch('masked_lm')
    weights = [float(step(state.replace(step=jnp.int32(n)), batch)[1]['weight']) for n in range(4)]
    assert len(set(weights)) > 1
    evaluate = jax.jit(functools.partial(eval_step, recipe=RECIPES['masked_lm']))
    one, two = (float(evaluate(state.params, batch)['loss']) for _ in range(2))
    assert one == two


def test_a_masked_token_is_not_seen():
    """With every token masked, the loss does not depend on what stood there."""
    recipe = RECIPES['masked_lm']
    hparams = HPARAMS | {'mask_rate': 1.0, 'mask_replace': 1.0, 'mask_random': 0.0}
    batch = make_batch('masked_lm')
    other = batch | {'tokens': np.where(batch['weights'] > 0, 7, 0)}
    step = jax.jit(functools.partial(train_step, hparams=hparams, recipe=recipe))
    losses = [step(initial_state('masked_lm'), b)[1]['loss'] for b in (batch, other)]
    assert losses[0] == losses[1]


def test_a_classifier_reads_no_padding():
    recipe = RECIPES['classification']
    batch = make_batch('classification')
    noise = np.where(batch['segment_ids'] > 0, batch['tokens'], 13)
    evaluate = jax.jit(functools.partial(eval_step, recipe=recipe))
    params = initial_state('classification').params
    np.testing.assert_allclose(
        evaluate(params, batch)['loss'], evaluate(params, batch | {'tokens': noise})['loss']
    )


def config(task, **model):
    result = base.get_config()
    result.task = task
    result.model.update(model)
    return result


def test_what_a_task_hides_follows_its_config():
    tokenizer = train_tokenizer('bytes', [])
    assert make_corruption(config('causal_lm'), tokenizer) is None
    assert make_corruption(config('seq2seq'), tokenizer) is None


@pytest.mark.parametrize('task', MODELS)
def test_a_model_of_another_kind_is_refused(task):
    for model in (BOTH, ENCODER, CLASSIFIER, TransformerConfig(vocab_size=9)):
        topology, heads = MODELS[task]
        if model.topology == topology and model.head in heads:
            check_objective(config(task), model)
        else:
            with pytest.raises(UserError, match=f'^task {task} needs model.topology {topology!r}'):
                check_objective(config(task), model)


def test_shares_of_the_hidden_tokens_are_at_most_all_of_them():
    wrong = config('masked_lm')
    wrong.corruption.replace, wrong.corruption.random = 0.8, 0.3
    with pytest.raises(UserError, match=r'corruption.replace 0.8 and corruption.random 0.3'):
        check_objective(wrong, ENCODER)
