"""generate.py of a language model: what it prints where."""

import functools
import json
import re
import sys

import jax
import numpy as np
import pytest
from small_runs import newest_model

import generate as script
from transformer.data import StreamDecoder
from transformer.data.tokenizers import train_tokenizer
from transformer.decoding import beam_search, generate, printing


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
