"""generate.py: what it prints where, and the one line that refuses a mistake."""

import functools
import json
import pathlib
import re
import shutil
import sys
import types

import jax
import numpy as np
import optax
import pytest

import generate as script
from configs import base
from transformer.config_files import config_to_json
from transformer.data import StreamDecoder, load_tokenizer
from transformer.data.tokenizers import SENTINELS, train_tokenizer
from transformer.decoding import (
    attention_maps,
    beam_search,
    classify,
    fill_masks,
    generate,
    printing,
)
from transformer.decoding.answers import written
from transformer.decoding.command import encode_texts
from transformer.errors import UserError
from transformer.modules import Transformer
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import init_params
from transformer.training.parallel import DataParallel
from transformer.training.run_folder import read_run
from transformer.training.state import TrainState

SMALL = {'num_layers': 2, 'embed_dim': 8, 'num_heads': 2, 'mlp_dim': 16, 'max_length': 32}
BOTH = {'topology': 'encoder_decoder', 'num_layers': 1}
LABELS = ('ham', 'spam', 'egg')


def make_run(workdir, task='causal_lm', source_text=None, labels=(), special=(), **model):
    """A folder as train.py leaves it, with two checkpoints."""
    workdir = pathlib.Path(workdir)
    config = base.get_config()
    config.task = task
    config.model.update(SMALL | model)
    (workdir / 'config.json').write_text(config_to_json(config))
    train_tokenizer('bytes', [], 0, special).save(workdir)
    if source_text:
        text = train_tokenizer('chars', [source_text]).to_json()
        (workdir / 'source_tokenizer.json').write_text(text)
    if labels:
        (workdir / 'labels.json').write_text(json.dumps(labels))
    with Checkpoints(workdir / 'checkpoints', keep=2) as checkpoints:
        for step in 0, 1:
            params = make_params(make_model(workdir), seed=step)
            state = TrainState.create(params, optax.sgd(1.0)).replace(step=np.int32(step))
            checkpoints.save(DataParallel().replicate(state))


def make_model(workdir):
    return Transformer(read_run(workdir, base.get_config()).model)


@functools.cache
def make_params(model, seed):
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_params(model, seed=0))
    return jax.tree.map(lambda x: random.normal(0, 0.5, x.shape).astype(x.dtype), shapes)


def newest_model(workdir):
    """The model with the parameters that the script should find, and the tokenizer."""
    model = make_model(workdir)
    params = jax.device_put(make_params(model, seed=1), jax.devices()[0])
    return model, params, load_tokenizer(workdir)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, run_python):
    """The folder of a run on two devices; here is one."""
    folder = tmp_path_factory.mktemp('run')
    code = (
        'import sys; sys.path.append("tests"); import test_generate as t; '
        't.make_run(sys.argv[1], vocab_size=300)'
    )
    run_python('-c', code, str(folder), devices=2)
    return folder


@functools.cache
def expected(workdir, *texts, new=20):
    """The texts continued by the library, with the newest parameters and the script's defaults."""
    model, params, tokenizer = newest_model(workdir)
    prompts = [[tokenizer.eos_id, *tokenizer.encode(text)] for text in texts]
    ids = {'eos_id': tokenizer.eos_id, 'vocab_limit': tokenizer.vocab_size}
    draw = {'temperature': 1.0, 'key': jax.random.key(0)}
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
    out, err = printed(*prompts)
    assert out == expected_out
    assert re.fullmatch(r'\d+ new tokens in [\d.]+ s\n', err)  # all came at once: no rate
    out, err = printed(*prompts, '--batch_size=1')
    assert out == expected_out
    assert re.search(r', after the first \d+ at \d+ tokens/s\n$', err)


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


def test_beams_give_the_best_texts_and_their_scores(workdir, printed):
    model, params, tokenizer = newest_model(workdir)
    prompts = [[tokenizer.eos_id, *b'On'], [tokenizer.eos_id, *b'ce']]
    found = beam_search(
        model,
        params,
        prompts,
        beam_size=3,
        max_new_tokens=20,
        length_penalty=0.5,
        eos_id=tokenizer.eos_id,
        vocab_limit=tokenizer.vocab_size,
        num_results=2,
    )
    argv = ['--prompt=On', '--prompt=ce', '--max_new_tokens=20', '--beam_size=3']
    argv += ['--length_penalty=0.5', '--num_samples=2']
    best = [(text, one) for text, ones in zip(('On', 'ce'), found, strict=True) for one in ones]
    out, err = printed(*argv)
    assert out == ''.join(
        f'=== {i} of 4, score {one.score:.4f} ===\n{text}{tokenizer.decode(one.tokens)}\n'
        for i, (text, one) in enumerate(best, 1)
    )
    assert err.startswith(f'{sum(len(one.tokens) for _, one in best)} new tokens')

    one_by_one = printed(*argv, '--jsonl', '--batch_size=1').out
    for line, (text, one) in zip(one_by_one.splitlines(), best, strict=True):
        result = json.loads(line)
        assert result['prompt'] == text
        assert result['completion'] == tokenizer.decode(one.tokens)
        assert result['ended'] == (one.tokens[-1] == tokenizer.eos_id)
        numbers = result['score'], result['log_probability']
        np.testing.assert_allclose(numbers, (one.score, one.log_probability), rtol=1e-4)


@pytest.fixture(scope='module')
def translating(tmp_path_factory):
    folder = tmp_path_factory.mktemp('seq2seq')
    make_run(folder, 'seq2seq', 'abc ', share_embeddings=False, **BOTH)
    return folder


def test_an_encoder_decoder_answers_its_source_greedily(translating, capsys, monkeypatch):
    model, params, tokenizer = newest_model(translating)
    sources = [[1, 2, 3, 0, 1, 4], [3, 3, 4]]  # ' abc', then the end
    ends = {'eos_id': tokenizer.eos_id, 'vocab_limit': tokenizer.vocab_size}
    prompts = [[tokenizer.eos_id]] * 2
    rows = generate(model, params, prompts, sources=sources, max_new_tokens=20, **ends)
    texts = [tokenizer.decode(row) for row in rows]
    assert len(set(texts)) == 2
    argv = [f'--workdir={translating}', '--prompt=abc a', '--max_new_tokens=20']
    drawn = []
    monkeypatch.setattr(attention_maps, 'plot_attention', lambda *a: drawn.append(a))
    script.main([*argv, '--plot_attention=a.png'])
    assert capsys.readouterr().out == texts[0] + '\n'
    [(_, _, _, tokens, path, source, source_tokenizer)] = drawn
    assert (tokens, source, str(path)) == (prompts[0] + rows[0], sources[0], 'a.png')
    assert source_tokenizer.decode(source) == 'abc a'

    script.main([*argv, '--prompt=cc', '--jsonl', '--batch_size=1'])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result['prompt'] for result in results] == ['abc a', 'cc']
    assert [result['completion'] for result in results] == texts


def test_sentinels_of_a_text_are_read_and_written(tmp_path):
    train_tokenizer('bytes', [], 0, SENTINELS[:3]).save(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    run = types.SimpleNamespace(
        model=types.SimpleNamespace(topology='encoder_decoder'),
        config=types.SimpleNamespace(task='span_corruption'),
        tokenizer=tokenizer,
        source_tokenizer=None,
        start_id=None,
    )
    prompts, sources, marks = encode_texts(run, ['a<extra_id_0>b<extra_id_1>'])
    first, second, third = tokenizer.sentinel_ids
    assert sources == [[97, first, 98, second, tokenizer.eos_id]]
    assert prompts == [[tokenizer.eos_id]]
    new = [first, 99, second, 100, third, tokenizer.eos_id]
    answer = written(tokenizer, marks, 'a', prompts[0], new)
    assert answer.text == '<extra_id_0>c<extra_id_1>d<extra_id_2>'
    assert answer.record['completion'] == answer.text
    assert answer.record['ended']


def test_a_masked_lm_fills_the_masks(tmp_path, capsys):
    make_run(tmp_path, 'masked_lm', special=['[MASK]'], topology='encoder', head='masked_lm')
    model, params, tokenizer = newest_model(tmp_path)
    rows = [[tokenizer.eos_id, 97, tokenizer.mask_id, 98, tokenizer.mask_id]]
    [masks] = fill_masks(model, params, rows, tokenizer.mask_id, 2, vocab_limit=258)
    best = [tokenizer.decode([candidates[0][0]]) for candidates in masks]
    argv = [f'--workdir={tmp_path}', '--prompt=a[MASK]b<mask>', '--top_k=2']
    script.main(argv)
    filled, *lines = capsys.readouterr().out.splitlines()
    assert filled == f'a{best[0]}b{best[1]}'
    assert len(lines) == 2
    for number, (line, candidates) in enumerate(zip(lines, masks, strict=True), 1):
        shown = [f'{tokenizer.decode([id])!r} {p:.4f}' for id, p in candidates]
        assert line == f'mask {number}: {", ".join(shown)}'

    script.main([*argv, '--jsonl'])
    result = json.loads(capsys.readouterr().out)
    assert result['filled'] == filled
    assert [mask[0]['token'] for mask in result['masks']] == best
    for wrong, word in ('--prompt=no mask', 'Prompt 2 has no mask'), ('--seed=1', '--seed'):
        with pytest.raises(UserError, match=word):
            script.main([*argv, wrong])


def test_a_classifier_says_how_probable_each_label_is(tmp_path, capsys):
    model = {'topology': 'encoder', 'head': 'classifier', 'num_classes': 3, 'num_layers': 1}
    make_run(tmp_path, 'classification', labels=LABELS, **model)
    model, params, tokenizer = newest_model(tmp_path)
    rows = [[tokenizer.eos_id, *b'green'], [tokenizer.eos_id]]
    expected = classify(model, params, rows)
    argv = [f'--workdir={tmp_path}', '--prompt=green', '--prompt=']
    script.main([*argv, '--jsonl'])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for result, probabilities in zip(results, expected, strict=True):
        assert tuple(result['probabilities']) == LABELS
        np.testing.assert_allclose(list(result['probabilities'].values()), probabilities, rtol=1e-5)
        assert result['label'] == LABELS[probabilities.argmax()]
    script.main(argv[:2])
    lines = capsys.readouterr().out.splitlines()
    order = np.argsort(-expected[0])
    assert lines == [f'{expected[0][i]:.4f} {LABELS[i]}' for i in order]


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
    ('task', 'argv', 'expected'),
    [
        ('causal_lm', [], {'temperature': 1.0, 'top_k': 0, 'num_samples': 1}),
        ('seq2seq', [], {'temperature': 0.0, 'top_p': 1.0}),
        ('span_corruption', ['--temperature=0.5'], {'temperature': 0.5}),
        ('seq2seq', ['--beam_size=4'], {'length_penalty': 0.6, 'num_samples': 1}),
        ('causal_lm', ['--beam_size=4', '--temperature=0'], {'beam_size': 4}),
        ('masked_lm', [], {'top_k': 5}),
    ],
)
def test_flags_have_the_defaults_of_the_task(task, argv, expected):
    args = script.make_parser().parse_args(['--workdir=x', *argv])
    script.check_numbers(args)
    script.settle_flags(args, task)
    assert {name: getattr(args, name) for name in expected} == expected


def test_half_a_character_is_never_printed(monkeypatch):
    shown = []
    monkeypatch.setattr(printing, 'show', shown.append)
    tokenizer = train_tokenizer('bytes', [])
    ids = tokenizer.encode('a\u00e9\u20ac')
    chunks = [[[id]] for id in ids[2:]]
    prompt = [tokenizer.eos_id, *ids[:2]]
    tokens = printing.show_stream(StreamDecoder(tokenizer), prompt, iter(chunks), printing.Clock())
    assert shown == ['a', '\u00e9', '', '', '\u20ac', '\n']
    assert tokens == [tokenizer.eos_id, *ids]


def test_a_terminal_gets_no_control_characters(monkeypatch, capsys):
    text = 'a\tb\n\x1b[2J\r\x07\x9b\u00e9'
    printing.show(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    printing.show(text)
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
