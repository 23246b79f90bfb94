"""generate.py of other models than a language model: translations, filled masks, labels."""

import json
import types

import numpy as np
import pytest
from small_runs import make_run, newest_model

import generate as script
from transformer.data import load_tokenizer
from transformer.data.tokenizers import SENTINELS, train_tokenizer
from transformer.decoding import attention_maps, classify, fill_masks, generate
from transformer.decoding.answers import written
from transformer.decoding.command import encode_texts
from transformer.errors import UserError

BOTH = {'topology': 'encoder_decoder', 'num_layers': 1}
LABELS = ('ham', 'spam', 'egg')


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
