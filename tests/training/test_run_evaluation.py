"""Runs of every kind evaluated from their folder: what is counted, decoded and written."""

import copy
import json

import numpy as np
import pytest

import eval as eval_script
from configs import base
from transformer.errors import UserError
from transformer.training.loop import train
from transformer.training.reporting import read_metrics
from transformer.training.run_evaluation import constant_accuracy, evaluate_run
from transformer.training.run_folder import read_run, restore_run
from transformer.training.translation import Search, text_metrics, translate

WORDS = ['red', 'green', 'blue', 'black', 'white']


def small(folder, task):
    config = base.get_config()
    config.task = task
    config.data.path = (str(folder / 'pairs.tsv'),)
    config.data.test_path = (str(folder / 'test.tsv'),)
    config.data.validation_fraction = 0.2
    config.data.cache_dir = str(folder / 'cache')
    config.data.tokenizer = 'chars'
    config.data.length = 24
    config.data.batch_size = 4
    config.model.num_layers = 1
    config.model.embed_dim = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.model.scan_layers = False
    config.train.steps = 4
    config.train.checkpoint_every = 2
    config.train.peak_flops = 1e11
    return config


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('evaluation')
    pairs = [f'{a} {b}\t{b} {a}' for a in WORDS for b in WORDS]
    (folder / 'pairs.tsv').write_text('\n'.join(pairs))
    (folder / 'test.tsv').write_text('red bed\tbed red\nbeat\tate\n')
    return folder


@pytest.fixture(scope='module')
def seq2seq(folder):
    config = small(folder, 'seq2seq')
    config.model.topology = 'encoder_decoder'
    config.train.ema_decay = 0.5
    config.train.decode_pairs = 3
    train(config, folder / 'seq2seq')
    return config


@pytest.mark.slow
def test_a_split_is_decoded_whole(folder, seq2seq):
    workdir = folder / 'seq2seq'
    found = evaluate_run(seq2seq, workdir, 'test', search=Search(max_new_tokens=8))
    assert found.pairs == [('red bed', 'bed red'), ('beat', 'ate')]
    assert found.metrics['step'] == 4
    assert found.metrics['pairs'] == len(found.hypotheses) == 2
    assert found.metrics['tokens'] == len('bed red') + len('ate') + 2
    run = read_run(workdir, base.get_config())
    params = restore_run(workdir, run)[1]
    alone = [
        translate(
            model_of(run), params, [pair.source], run.tokenizer, None, Search(max_new_tokens=8)
        )
        for pair in found.pairs
    ]
    assert found.hypotheses == [text for (text,) in alone]
    beams = evaluate_run(seq2seq, workdir, 'test', 2, Search(beam_size=2, max_new_tokens=8))
    assert beams.metrics['loss'] != found.metrics['loss']  # an average of two checkpoints
    assert len(beams.hypotheses) == 2


def model_of(run):
    from transformer.modules import Transformer

    return Transformer(run.model)


def test_training_reports_what_it_decodes(folder, seq2seq):
    evaluation = [line for line in read_metrics(folder / 'seq2seq') if line['split'] == 'eval'][-1]
    assert {'bleu', 'chrf', 'exact_match', 'bits_per_byte'} <= evaluation.keys()


def test_the_script_prints_and_writes(folder, seq2seq, capsys):
    workdir = folder / 'seq2seq'
    eval_script.main([f'--workdir={workdir}', '--split=test', '--beam_size=2'])
    printed = capsys.readouterr().out
    assert 'source      red bed\nreference   bed red\nhypothesis  ' in printed
    assert 'bleu_signature: nrefs:1|case:mixed' in printed
    lines = (workdir / 'decoded_test.jsonl').read_text().splitlines()
    assert [json.loads(line)['reference'] for line in lines] == ['bed red', 'ate']
    metrics = json.loads((workdir / 'eval_test.json').read_text())
    assert metrics['step'] == 4
    with pytest.raises(UserError, match='average must be at least 1, not 0'):
        eval_script.main([f'--workdir={workdir}', '--average=0'])
    with pytest.raises(UserError, match='holds 2 checkpoint'):
        eval_script.main([f'--workdir={workdir}', '--average=3'])


def test_a_test_split_that_no_field_names(folder, seq2seq):
    config = copy.deepcopy(seq2seq)
    config.data.test_path = ()
    with pytest.raises(UserError, match=r'[Tt]here is no test split: set data\.test_path'):
        evaluate_run(config, folder / 'seq2seq', 'test')


def test_metrics_are_those_of_sacrebleu():
    import sacrebleu

    references = ['The cat sat on the mat.', 'Ein kleiner Hund läuft.']
    hypotheses = ['The cat sat on a mat.', 'Ein kleiner Hund läuft.']
    metrics = text_metrics(hypotheses, references)
    assert metrics['exact_match'] == 0.5
    assert metrics['bleu'] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert metrics['chrf'] == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert 'version:' in metrics['bleu_signature']


@pytest.mark.parametrize('task', ['masked_lm', 'classification'])
def test_the_best_constant_answer_stands_beside_the_accuracy(folder, task):
    config = small(folder, task)
    config.model.topology = 'encoder'
    if task == 'masked_lm':
        config.data.path, config.data.test_path = (str(folder / 'pairs.tsv'),), ()
        config.data.validation_fraction = 0.5
    else:
        config.model.head = 'classifier'
        lines = [f'{a} {b}\t{b == "red"}' for a in WORDS for b in WORDS]
        (folder / 'labels.tsv').write_text('\n'.join(lines))
        config.data.path = config.data.validation_path = (str(folder / 'labels.tsv'),)
        config.data.test_path = ()
    workdir = folder / task
    train(config, workdir)
    metrics = evaluate_run(config, workdir).metrics
    assert 'bits_per_byte' not in metrics
    if task == 'classification':
        assert metrics['constant_accuracy'] == pytest.approx(0.8)
        assert metrics['tokens'] == 25
        (workdir / 'labels.json').write_text('["False", "Maybe", "True"]')
        with pytest.raises(UserError, match='holds a run with other classes'):
            evaluate_run(config, workdir)
    else:
        assert 0 < metrics['constant_accuracy'] < 1


def test_constant_accuracy_counts_by_weight():
    class Split:
        def evaluation_batches(self, batch_size):
            yield {'targets': np.array([[3, 3], [1, 9]]), 'weights': np.array([[1, 1], [1, 0]])}
            yield {'targets': np.array([[1, 1], [1, 3]]), 'weights': np.array([[0, 1], [1, 0]])}

    assert constant_accuracy(Split(), 2) == pytest.approx(3 / 5)
