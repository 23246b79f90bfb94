"""A run of ours, written for others: `python -m transformer.interop`."""

import json

import jax
import numpy as np
import pytest

from configs import base
from transformer.errors import UserError
from transformer.interop import load_pretrained
from transformer.interop.__main__ import main
from transformer.training.loop import train
from transformer.training.run_folder import read_run, restore_run


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
    """A trained decoder with adapters and a moving average."""
    folder = tmp_path_factory.mktemp('export')
    (folder / 'text.txt').write_text('the quick brown fox jumps over the lazy dog. ' * 40)
    config = base.get_config()
    config.data.path = (str(folder / 'text.txt'),)
    config.data.cache_dir = str(folder / 'cache')
    config.data.tokenizer = 'bytes'
    config.data.length = 16
    config.data.batch_size = 4
    config.model.num_layers = 2
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 24
    config.lora.rank = 2
    config.train.ema_decay = 0.5
    config.train.steps = 2
    config.train.peak_flops = 1e11
    train(config, folder / 'run')
    return folder / 'run'


def test_a_run_is_written_as_it_is_evaluated(workdir, tmp_path, capsys):
    main([f'--workdir={workdir}', f'--out={tmp_path / "ours"}'])
    printed = capsys.readouterr().out
    assert printed == f'{tmp_path / "ours"}: a llama model, from step 2 of {workdir}\n'
    run = read_run(workdir, base.get_config())
    _, expected = restore_run(workdir, run)  # the moving average, with the adapters merged
    config, params, tokenizer = load_pretrained(tmp_path / 'ours', scan_layers=True)
    assert (config.num_layers, config.position) == (2, 'rope')
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert tokenizer.to_json() == run.tokenizer.to_json()
    fields = json.loads((tmp_path / 'ours' / 'config.json').read_text())
    assert fields['bos_token_id'] == fields['eos_token_id'] == tokenizer.eos_id


def test_a_family_that_does_not_fit_is_refused_by_its_field(workdir, tmp_path):
    flags = [f'--workdir={workdir}', f'--out={tmp_path / "ours"}']
    with pytest.raises(UserError, match=r'A gpt2 model has no place for decoder/layer_0'):
        main([*flags, '--family=gpt2'])
    with pytest.raises(UserError, match="Did you mean 'llama'"):
        main([*flags, '--family=lama'])
    with pytest.raises(UserError, match=r'No published family .* --family=NAME tells'):
        main([*flags, '--config.model.activation=relu_squared', '--config.model.rope.scaling=ntk'])
    with pytest.raises(UserError, match='holds no run'):
        main([f'--workdir={tmp_path}', f'--out={tmp_path / "ours"}'])
    assert not (tmp_path / 'ours').exists()
