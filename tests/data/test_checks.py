"""Mistakes in what goes together: tasks, pairs and special tokens."""

import pytest

from transformer.data import check_data, load_data
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError

FILE = 'lines.txt'


@pytest.fixture(autouse=True)
def files(config, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text('text\n' * 9)
    config.data.path = ('stdlib',)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({}, r'stdlib holds no pairs: give .tsv'),
        ({'path': (FILE,)}, r'lines.txt holds no pairs'),
        ({'path': ()}, r'data.path is empty'),
        ({'source_path': (FILE,)}, r'source_path has 1 entries and data.target_path 0: every'),
        ({'test_target_path': (FILE,)}, r'test_source_path has 0 .* data.test_target_path 1'),
        (
            {'source_path': (FILE, FILE), 'target_path': (FILE,)},
            r'source_path has 2 entries and data.target_path 1',
        ),
        (
            {'path': ('dates',), 'source_path': (FILE,), 'target_path': (FILE,)},
            r'data.path and data.source_path are both set',
        ),
        (
            {
                'path': ('dates',),
                'validation_path': ('dates',),
                'validation_source_path': (FILE,),
                'validation_target_path': (FILE,),
            },
            r'data.validation_path and data.validation_source_path are both set',
        ),
        ({'source_path': (3,), 'target_path': (FILE,)}, r'names of corpora, not 3'),
        ({'source_path': ('no',), 'target_path': (FILE,)}, r'no does not exist'),
        (
            {'source_path': (FILE,), 'target_path': (FILE,), 'weights': (1.0, 2.0)},
            r'data.weights has 2 entries and data.source_path 1',
        ),
        ({'path': ('date',)}, r"date does not exist: .*'dates' and 'docstrings'"),
        (
            {'path': ('dates',), 'overlong': 'crop'},
            r"overlong must be one of cut, drop; not 'crop'",
        ),
        ({'path': ('dates',), 'source_length': 0}, r'data.source_length must be at least 1, not 0'),
        ({'path': ('dates',), 'source_vocab_size': 300}, r'of data.source_tokenizer, which is not'),
        (
            {'path': ('dates',), 'source_tokenizer': 'bp'},
            r'no tokenizer bp: give bytes, chars, bpe',
        ),
    ],
)
def test_pairs_that_are_none(config, tmp_path, fields, message):
    config.task = 'seq2seq'
    config.data.update(fields)
    for find in check_data, load_data:
        with pytest.raises(UserError, match=message):
            find(config)
    assert not (tmp_path / 'cache').exists()


@pytest.mark.parametrize('task', ['causal_lm', 'masked_lm', 'span_corruption'])
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'path': ('dates',)}, r"data.path 'dates' holds pairs and task {} reads documents"),
        ({'test_path': (FILE, 'docstrings')}, r"data.test_path 'docstrings' holds pairs"),
        ({'source_path': (FILE,), 'target_path': (FILE,)}, r'data.source_path holds pairs and'),
        ({'source_length': 8}, r'data.source_length is for task seq2seq, not for {}'),
        ({'source_tokenizer': 'bpe'}, r'data.source_tokenizer is for task seq2seq'),
    ],
)
def test_pairs_where_documents_are_read(config, task, fields, message):
    config.task = task
    config.data.update(fields)
    with pytest.raises(UserError, match=message.format(task)):
        check_data(config)


def test_what_goes_together(config):
    config.data.test_path = (FILE,)
    for task in 'causal_lm', 'masked_lm', 'span_corruption':
        config.task = task
        check_data(config)
    config.data.test_path = ()
    for task in 'seq2seq', 'classification':
        config.task = task
        config.data.source_path = config.data.target_path = (FILE,)  # the default path may stay
        check_data(config)
    config.data.source_path = config.data.target_path = ()
    for config.data.path in ('dates',), ('docstrings',):
        check_data(config)


def test_spans_run_on(config):
    config.task = 'span_corruption'
    config.data.packing = 'examples'
    with pytest.raises(UserError, match=r"documents run on: set data.packing='stream'"):
        check_data(config)


@pytest.mark.parametrize(
    ('task', 'token'), [('masked_lm', r'\[MASK\]'), ('span_corruption', '<extra_id_0>')]
)
def test_tokenizers_without_the_special_tokens(config, tmp_path, task, token):
    config.data.path = (FILE,)
    config.task = task
    own = load_data(config).tokenizer
    check_data(config)
    plain = train_tokenizer('bytes', [])
    for find in lambda: load_data(config, plain), lambda: check_data(config):
        with pytest.raises(UserError, match=f'special token {token}, which .* add it, or let data'):
            find()
        config.data.tokenizer = str(plain.save(tmp_path / 'plain'))
    config.data.tokenizer = str(own.save(tmp_path / 'own'))
    assert load_data(config).tokenizer.to_json() == own.to_json()
