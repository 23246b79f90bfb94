"""Parameters of an earlier run in a new model: by name, nothing in silence."""

import jax
import numpy as np
import pytest

from configs import base
from transformer.errors import UserError
from transformer.modules import unstack_layers
from transformer.modules.axes import path_name
from transformer.training.experiment import load_experiment
from transformer.training.loop import train
from transformer.training.run_evaluation import evaluate_run
from transformer.training.run_folder import read_run, restore_run
from transformer.training.warm_start import warm_start

SENTENCE = 'the quick brown fox jumps over the lazy dog. '


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A finished run of a masked language model with scanned layers."""
    folder = tmp_path_factory.mktemp('warm')
    (folder / 'text.txt').write_text(SENTENCE * 50)
    words = sorted(set(SENTENCE.removesuffix('. ').split()))
    pairs = [f'{a} {b}\t{a < b}' for a in words for b in words]
    (folder / 'pairs.tsv').write_text('\n'.join(pairs))
    train(masked_lm(folder), folder / 'run')
    return folder


def masked_lm(folder):
    config = base.get_config()
    config.task = 'masked_lm'
    config.data.path = (str(folder / 'text.txt'),)
    config.data.cache_dir = str(folder / 'cache')
    config.data.tokenizer = 'chars'
    config.data.length = 16
    config.data.batch_size = 4
    config.model.topology = 'encoder'
    config.model.head = 'masked_lm'
    config.model.num_layers = 2
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.train.steps = 3
    config.train.peak_flops = 1e11
    return config


def classifier(folder):
    config = masked_lm(folder)
    config.task = 'classification'
    config.data.path = (str(folder / 'pairs.tsv'),)
    config.model.head = 'classifier'
    config.model.scan_layers = False
    config.init_from = str(folder / 'run')
    return config


def named(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_a_new_head_on_an_old_encoder(folder):
    run = read_run(folder / 'run', base.get_config())
    experiment = load_experiment(classifier(folder), run.tokenizer)
    fresh = jax.jit(experiment.initial_params)()
    model = experiment.model_config
    merged, text = warm_start(fresh, model, folder / 'run', base.get_config())
    assert jax.tree.structure(merged) == jax.tree.structure(fresh)
    trained = named(unstack_layers(restore_run(folder / 'run', run)[1], run.model))
    for name, leaf in named(merged).items():
        np.testing.assert_array_equal(leaf, trained.get(name, named(fresh)[name]))
    assert 'fresh: classifier/bias, classifier/kernel; left out: head/norm/scale' in text
    assert text.startswith(f'{len(trained) - 3} parameters of {folder / "run"}, step 3;')


def test_scanned_layers_take_looped_ones(folder):
    run = read_run(folder / 'run', base.get_config())
    step, trained = restore_run(folder / 'run', run)
    zeros = jax.tree.map(np.zeros_like, trained)
    merged, text = warm_start(zeros, run.model, folder / 'run', base.get_config())
    jax.tree.map(np.testing.assert_array_equal, merged, trained)
    assert (step, 'fresh' in text, 'left out' in text) == (3, False, False)


def test_training_starts_from_the_earlier_run_and_says_so(folder, capfd):
    config = classifier(folder)
    config.optimizer.name = 'sgd'
    config.optimizer.learning_rate = 1e-30
    config.optimizer.weight_decay = 0.0
    train(config, folder / 'classifier')
    assert 'parameters of ' in capfd.readouterr().err
    (before, after) = (read_run(folder / name, base.get_config()) for name in ('run', 'classifier'))
    assert after.labels == ('False', 'True')
    assert after.tokenizer.to_json() == before.tokenizer.to_json()
    old = named(unstack_layers(restore_run(folder / 'run', before)[1], before.model))
    new = named(restore_run(folder / 'classifier', after)[1])
    np.testing.assert_array_equal(new['embedding/table'], old['embedding/table'])


def test_other_sizes_and_other_folders_are_refused(folder, tmp_path):
    config = classifier(folder)
    config.model.mlp_dim = 48
    with pytest.raises(UserError, match=r'^init_from .*/run: .*feed_forward.* is \[32, 16\] there'):
        train(config, tmp_path / 'other')
    config.init_from = str(tmp_path / 'nothing')
    with pytest.raises(UserError, match=r'nothing holds no run'):
        train(config, tmp_path / 'other')


def test_adapters_of_a_run_are_merged_when_it_is_read(folder):
    config = classifier(folder)
    config.lora.rank = 2
    config.lora.paths = r'attention/value/kernel$'
    config.train.frozen = 'classifier'
    train(config, folder / 'adapted')
    run = read_run(folder / 'adapted', base.get_config())
    adapted = named(restore_run(folder / 'adapted', run)[1])
    source = read_run(folder / 'run', base.get_config())
    before = named(unstack_layers(restore_run(folder / 'run', source)[1], source.model))
    changed = {
        name for name in before.keys() & adapted.keys() if (adapted[name] != before[name]).any()
    }
    assert changed == {f'encoder/layer_{i}/self_attention/value/kernel' for i in (0, 1)}
    metrics = evaluate_run(config, folder / 'adapted').metrics
    assert np.isfinite(metrics['loss'])
