"""Published models in the place of runs: fine-tuned, evaluated, and refused by name."""

import json

import jax
import numpy as np
import pytest

import eval as eval_script
import generate as generate_script
from configs import base
from transformer.config import TransformerConfig
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError
from transformer.flops import parameter_shapes
from transformer.interop import save_pretrained
from transformer.training.loop import train
from transformer.training.pretrained import is_pretrained, pretrained_run
from transformer.training.run_folder import read_run, restore_run

SENTENCE = 'the quick brown fox jumps over the lazy dog. '
MODEL = TransformerConfig(
    vocab_size=260,
    num_layers=2,
    embed_dim=16,
    num_heads=2,
    mlp_dim=32,
    max_length=32,
    position='learned',
    norm='layernorm',
    norm_eps=1e-5,
    feed_forward='mlp',
    activation='gelu_tanh',
    mlp_bias=True,
    attention_bias='all',
    scan_layers=False,
)


def random_params():
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: np.float32(rng.normal(size=leaf.shape, scale=0.1)), parameter_shapes(MODEL)
    )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A GPT-2 of random parameters, and a text."""
    folder = tmp_path_factory.mktemp('pretrained')
    save_pretrained(folder / 'gpt2', MODEL, random_params(), train_tokenizer('bytes', []), 'gpt2')
    (folder / 'text.txt').write_text(SENTENCE * 40)
    (folder / 'config.py').write_text(
        f"""
from configs import base

def get_config():
    config = base.get_config()
    config.data.path = ({str(folder / 'text.txt')!r},)
    config.data.cache_dir = {str(folder / 'cache')!r}
    config.data.length = 16
    config.data.batch_size = 4
    config.train.steps = 2
    config.train.peak_flops = 1e11
    return config
"""
    )
    return folder


def test_a_folder_says_what_it_is(folder, tmp_path):
    assert is_pretrained(folder / 'gpt2')
    assert not is_pretrained(folder)
    (tmp_path / 'config.json').write_text('{"task": "causal_lm"}')
    assert not is_pretrained(tmp_path)
    run = pretrained_run(folder / 'gpt2', base.get_config())
    assert (run.config.task, run.model.num_layers, run.tokenizer.vocab_size) == (
        'causal_lm',
        2,
        257,
    )


def fine_tuning(folder):
    from transformer.flags import load_config

    config = load_config(folder / 'config.py')
    config.init_from = str(folder / 'gpt2')
    return config


def test_training_takes_architecture_parameters_and_tokenizer(folder, capfd):
    config = fine_tuning(folder)
    config.train.frozen = 'kernel$'
    train(config, folder / 'run')
    assert f'parameters of {folder / "gpt2"}' in capfd.readouterr().err
    run = read_run(folder / 'run', base.get_config())
    assert (run.model.position, run.model.vocab_size, run.model.scan_layers) == (
        'learned',
        260,
        True,
    )
    trained = restore_run(folder / 'run', run)[1]
    kernel = trained['decoder']['layers']['slot_0']['self_attention']['query']['kernel']
    expected = random_params()['decoder']['layer_1']['self_attention']['query']['kernel']
    np.testing.assert_array_equal(kernel[1], expected)
    train(config, folder / 'run')  # a resumed run adopts it again


def test_evaluation_of_a_published_model(folder, capsys):
    flags = [f'--pretrained={folder / "gpt2"}', f'--config={folder / "config.py"}']
    eval_script.main([*flags, f'--workdir={folder / "evaluated"}'])
    metrics = json.loads((folder / 'evaluated' / 'eval.json').read_text())
    assert 4 < metrics['loss'] < 8  # of random parameters: about log 257
    assert 'perplexity' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ([], 'Say what to evaluate'),
        (['--pretrained=x'], '--config=FILE go together'),
        (['--workdir=x', '--config=y'], '--config=FILE go together'),
    ],
)
def test_flags_that_do_not_go_together(flags, message):
    with pytest.raises(UserError, match=message):
        eval_script.main(flags)


def test_an_architecture_of_its_own_is_refused(folder):
    config = fine_tuning(folder)
    config.model.num_layers = 3
    with pytest.raises(UserError, match=r'^model\.num_layers is 2 in .*/gpt2, not 3: leave it out'):
        train(config, folder / 'other')


def test_a_published_model_goes_on_with_a_text(folder, capsys):
    flags = ['--prompt=the', '--temperature=0', '--max_new_tokens=4']
    generate_script.main([f'--pretrained={folder / "gpt2"}', *flags])
    assert capsys.readouterr().out.startswith('the')
    with pytest.raises(UserError, match=r'--config\.model\.num_layers: a published model'):
        generate_script.main([f'--pretrained={folder / "gpt2"}', '--config.model.num_layers=3'])
    for wrong in [], [f'--pretrained={folder}', '--workdir=x']:
        with pytest.raises(UserError, match='Say whose model it is'):
            generate_script.main(wrong)
