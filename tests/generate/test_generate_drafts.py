"""generate.py with a smaller model that drafts: the same texts, and drafts that are refused."""

import pytest
from small_runs import make_run

import generate as script
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """Of a run, of a smaller one, and of one with another tokenizer."""
    found = [tmp_path_factory.mktemp(name) for name in ('run', 'draft', 'other')]
    for folder, layers in zip(found, (2, 1, 1), strict=True):
        make_run(folder, vocab_size=300, num_layers=layers)
    train_tokenizer('chars', ['abc']).save(found[2])
    return found


@pytest.mark.parametrize('prompts', [['Once'], ['a', 'Once more']])
def test_the_likeliest_text_is_the_same(folders, prompts, capsys):
    argv = [f'--workdir={folders[0]}', '--temperature=0', '--max_new_tokens=12']
    argv += [f'--prompt={prompt}' for prompt in prompts]
    script.main(argv)
    expected = capsys.readouterr().out
    script.main([*argv, f'--draft={folders[1]}', '--num_drafts=3'])
    assert capsys.readouterr().out == expected
    assert len(expected) > 12


@pytest.mark.parametrize(
    ('argv', 'words'),
    [
        (['--draft={draft}', '--beam_size=2'], ['--draft', 'with --beam_size']),
        (['--num_drafts=2'], ['--num_drafts', 'without --draft']),
        (['--draft={draft}', '--num_drafts=0'], ['num_drafts', 'at least 1']),
        (['--draft={other}'], ['{other}', 'another tokenizer', 'tokenizer.json']),
        (['--draft=/no/run'], ['/no/run', 'train']),
    ],
)
def test_drafts_that_cannot_be_are_refused_before_parameters_are_read(
    monkeypatch, folders, argv, words
):
    monkeypatch.setattr(script, 'restore_model', lambda *_: pytest.fail('too late'))
    names = dict(zip(('run', 'draft', 'other'), folders, strict=True))
    with pytest.raises(UserError) as caught:
        script.main([f'--workdir={folders[0]}', *[flag.format(**names) for flag in argv]])
    assert '\n' not in str(caught.value)
    for word in words:
        assert word.format(**names) in str(caught.value)


def test_a_translator_takes_no_draft():
    args = script.make_parser().parse_args(['--workdir=x', '--draft=y'])
    with pytest.raises(UserError, match='--draft says nothing for a run of task seq2seq'):
        script.settle_flags(args, 'seq2seq')
