"""generate.py: the one line that refuses a mistake."""

import shutil

import pytest

import generate as script
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError


@pytest.mark.parametrize(
    ('task', 'argv', 'words'),
    [
        ('causal_lm', ['--length_penalty=1'], ['--length_penalty', 'without --beam_size']),
        ('causal_lm', ['--beam_size=2', '--top_p=0.5'], ['--top_p', 'with --beam_size']),
        ('seq2seq', ['--beam_size=2', '--seed=0'], ['--seed', 'with --beam_size']),
        ('masked_lm', ['--temperature=0'], ['--temperature', 'masked_lm']),
        ('masked_lm', ['--num_samples=2'], ['--num_samples', 'masked_lm']),
        ('classification', ['--top_k=2'], ['--top_k', 'classification']),
        ('classification', ['--beam_size=2'], ['--beam_size', 'classification']),
    ],
)
def test_flags_that_say_nothing_are_refused(task, argv, words):
    args = script.make_parser().parse_args(['--workdir=x', *argv])
    with pytest.raises(UserError) as caught:
        script.settle_flags(args, task)
    for word in words:
        assert word in str(caught.value)


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
        (['--average=0'], ['average', 'at least 1']),
        (['--plot_attention=/no/a.png'], ['/no/a.png', 'cannot be written', 'No such file']),
        (['--plot_attention=a.gif'], ['a.gif', "'.gif'", '.png']),
        (['--beam_size=2', '--temperature=0.5'], ['--beam_size', '--temperature=0.5']),
        (['--beam_size=0'], ['beam_size', 'at least 1']),
        (['--beam_size=2', '--num_samples=3'], ['num_results 3', 'beam_size 2']),
        (['--beam_size=258'], ['beam_size 258', 'vocabulary of 257']),
        (['--temprature=1'], ['--temprature', '--temperature']),
        (['once upon'], ["'once upon'"]),
        (['--config.model.num_layers=3'], ['--config.model.num_layers', 'another shape']),
    ],
)
def test_mistakes_are_refused_before_parameters_are_read(monkeypatch, workdir, argv, words):
    monkeypatch.setattr(script, 'restore_model', lambda *_: pytest.fail('too late'))
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
