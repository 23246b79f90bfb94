"""generate.py: what it prints where, and the one line that refuses a mistake."""

import functools
import json
import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import optax
import pytest

import generate as script
from configs import base
from transformer.data import load_tokenizer
from transformer.data.tokenizers import train_tokenizer
from transformer.decoding import generate
from transformer.errors import UserError
from transformer.flags import config_to_json
from transformer.modules import Transformer
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import init_params, model_config
from transformer.training.parallel import DataParallel
from transformer.training.run_folder import read_config
from transformer.training.state import TrainState


def make_run(workdir):
    """A folder as train.py leaves it, with two checkpoints."""
    workdir = pathlib.Path(workdir)
    config = base.get_config()
    config.model.update({'num_layers': 2, 'embed_dim': 8, 'num_heads': 2, 'mlp_dim': 16})
    config.model.update({'vocab_size': 300, 'max_length': 32})
    (workdir / 'config.json').write_text(config_to_json(config))
    train_tokenizer('bytes', []).save(workdir)
    with Checkpoints(workdir / 'checkpoints', keep=2) as checkpoints:
        for step in 0, 1:
            params = make_params(make_model(workdir), seed=step)
            state = TrainState.create(params, optax.sgd(1.0)).replace(step=np.int32(step))
            checkpoints.save(DataParallel().replicate(state))


def make_model(workdir):
    config = read_config(workdir, base.get_config())
    return Transformer(model_config(config, load_tokenizer(workdir).vocab_size))


def make_params(model, seed):
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_params(model, seed=0))
    return jax.tree.map(lambda x: random.normal(0, 0.5, x.shape).astype(x.dtype), shapes)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, run_python):
    """The folder of a run on two devices; here is one."""
    folder = tmp_path_factory.mktemp('run')
    code = (
        'import sys; sys.path.append("tests"); import test_generate as t; t.make_run(*sys.argv[1:])'
    )
    run_python('-c', code, str(folder), devices=2)
    return folder


@functools.cache
def expected(workdir, *texts, new=20):
    """The texts continued by the library, with the newest parameters and the script's defaults."""
    model, tokenizer = make_model(workdir), load_tokenizer(workdir)
    prompts = [[tokenizer.eos_id, *tokenizer.encode(text)] for text in texts]
    ids = {'eos_id': tokenizer.eos_id, 'vocab_limit': tokenizer.vocab_size}
    draw = {'temperature': 1.0, 'key': jax.random.key(0)}
    params = jax.device_put(make_params(model, seed=1), jax.devices()[0])
    rows = generate(model, params, prompts, max_new_tokens=new, **ids, **draw)
    return [tokenizer.decode(prompt + row) for prompt, row in zip(prompts, rows, strict=True)]


@pytest.fixture
def printed(workdir, capsys):
    def run(*argv):
        script.main([f'--workdir={workdir}', *argv])
        return capsys.readouterr()

    return run


def test_one_prompt_gives_exactly_its_text_and_the_speed_on_stderr(workdir, printed):
    out, err = printed('--prompt=Once', '--max_new_tokens=20')
    [text] = expected(workdir, 'Once')
    assert text.startswith('Once')
    assert len(text) > 10
    assert out == text + '\n'
    assert re.fullmatch(r'\d+ new tokens in [\d.]+ s, after the first 8 at \d+ tokens/s\n', err)


def test_many_prompts_come_in_order_whatever_the_batches(workdir, printed):
    texts = expected(workdir, 'Once', '', 'Once')
    assert len(set(texts)) == 3
    expected_out = ''.join(f'=== {i} of 3 ===\n{text}\n' for i, text in enumerate(texts, 1))
    prompts = ['--prompt=Once', '--prompt=', '--prompt=Once', '--max_new_tokens=20']
    assert printed(*prompts).out == expected_out
    assert printed(*prompts, '--batch_size=1').out == expected_out


def test_prompts_of_a_file_and_samples_of_each_as_json_lines(workdir, printed, tmp_path):
    file = tmp_path / 'prompts.txt'
    file.write_text('Once\n\u00e9 \n', encoding='utf-8')
    argv = [f'--input={file}', '--num_samples=2', '--jsonl', '--max_new_tokens=20']
    results = [json.loads(line) for line in printed(*argv).out.splitlines()]
    prompts = ['Once', 'Once', '\u00e9 ', '\u00e9 ']
    assert [result['prompt'] for result in results] == prompts
    texts = [result['prompt'] + result['completion'] for result in results]
    assert texts == expected(workdir, *prompts)
    assert {result['ended'] for result in results} <= {True, False}


def test_a_text_may_end_itself(printed):
    """Every token is as likely: the end comes early, and ids without text never come."""
    argv = ['--temperature=1e9', '--num_samples=64', '--batch_size=4', '--jsonl']
    results = [json.loads(line) for line in printed(*argv).out.splitlines()]
    ended = [result for result in results if result['ended']]
    assert 0 < len(ended) < 32
    assert all(len(result['completion']) < 31 for result in ended)


def test_by_default_the_model_limits_the_text(printed):
    """5 bytes and the first token leave 34 of 40."""
    err = printed('--prompt=12345', '--temperature=0', '--config.model.max_length=40').err
    assert err.startswith('34 new tokens')


def test_half_a_character_is_never_printed(monkeypatch):
    shown = []
    monkeypatch.setattr(script, 'show', shown.append)
    tokenizer = train_tokenizer('bytes', [])
    ids = tokenizer.encode('a\u00e9\u20ac')
    chunks = [[[id]] for id in ids[2:]]
    prompt = [tokenizer.eos_id, *ids[:2]]
    script.print_stream(lambda prompts: iter(chunks), tokenizer, prompt, script.Clock())
    assert shown == ['a', '\u00e9', '', '', '\u20ac', '\n']


def test_a_terminal_gets_no_control_characters(monkeypatch, capsys):
    text = 'a\tb\n\x1b[2J\r\x07\x9b\u00e9'
    script.show(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    script.show(text)
    assert capsys.readouterr().out == 'a\tb\n\ufffd[2J\ufffd\ufffd\ufffd\u00e9'


@pytest.mark.parametrize(
    ('argv', 'words'),
    [
        (['--prompt=a', '--input=b'], ['--prompt', '--input', 'one of them']),
        (['--input=/no/file'], ['--input', '/no/file', 'No such file']),
        (['--workdir=/no/run'], ['/no/run', 'train']),
        (['--max_new_tokens=40'], ['1 tokens', '40', 'model.max_length 32', 'to 31']),
        (['--prompt=' + 'x' * 32], ['33 tokens', 'shorten the prompt to 31']),
        (['--max_new_tokens=0'], ['max_new_tokens', 'at least 1']),
        (['--temperature=-1'], ['temperature', '-1.0']),
        (['--top_p=0'], ['top_p', '(0, 1]']),
        (['--num_samples=0'], ['num_samples', 'at least 1']),
        (['--batch_size=0'], ['batch_size', 'at least 1']),
        (['--seed=-1'], ['seed', '-1']),
        (['--temprature=1'], ['--temprature', '--temperature']),
        (['once upon'], ["'once upon'"]),
        (['--config.model.num_layers=3'], ['--config.model.num_layers', 'another shape']),
    ],
)
def test_mistakes_are_refused_before_parameters_are_read(monkeypatch, workdir, argv, words):
    monkeypatch.setattr(script, 'restore_params', lambda *_: pytest.fail('too late'))
    with pytest.raises(UserError) as caught:
        script.main([f'--workdir={workdir}', *argv])
    assert '\n' not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_files_that_are_no_prompts_are_refused(workdir, tmp_path):
    file = tmp_path / 'prompts.txt'
    file.write_bytes(b'\xff\xfe')
    with pytest.raises(UserError, match='not UTF-8'):
        script.main([f'--workdir={workdir}', f'--input={file}'])
    file.write_bytes(b'')
    with pytest.raises(UserError, match='is empty'):
        script.main([f'--workdir={workdir}', f'--input={file}'])


def test_a_run_without_a_checkpoint_or_the_characters_is_refused(workdir, tmp_path):
    shutil.copy(workdir / 'config.json', tmp_path)
    train_tokenizer('chars', ['abc']).save(tmp_path)
    with pytest.raises(UserError, match="lacks 'x' 'y'"):
        script.main([f'--workdir={tmp_path}', '--prompt=axby'])
    with pytest.raises(UserError, match='no checkpoint'):
        script.main([f'--workdir={tmp_path}', '--prompt=abc'])


def test_help_and_refusals_come_before_heavy_imports(run_python, tmp_path):
    code = (
        'import sys, generate\n'
        'try: generate.main(["--help"])\n'
        'except SystemExit: print("jax" in sys.modules, "orbax" in sys.modules)\n'
    )
    assert run_python('-c', code).stdout.endswith('False False\n')
    refused = run_python('generate.py', f'--workdir={tmp_path}', code=2)
    assert refused.stdout == ''
    assert refused.stderr.startswith('error: ')
    assert refused.stderr.count('\n') == 1
