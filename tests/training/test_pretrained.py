"""Published models in the place of runs: fine-tuned, evaluated, and refused by name."""

import dataclasses
import json
import sys
import types

import jax
import numpy as np
import pytest
import tokenizers

import eval as eval_script
import generate as generate_script
from configs import base
from transformer.config import TransformerConfig
from transformer.config_files import load_config
from transformer.data.tokenizers import Tokenizer, train_tokenizer
from transformer.decoding import classify, generate
from transformer.errors import UserError
from transformer.flops import parameter_shapes
from transformer.functional import cross_entropy
from transformer.interop import hub, read_pretrained, save_pretrained
from transformer.modules import Transformer
from transformer.training.loop import train
from transformer.training.pretrained import is_pretrained, pretrained_run
from transformer.training.run_evaluation import as_published, evaluate_pretrained
from transformer.training.run_folder import read_run, restore_run
from transformer.training.translation import Search

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


T5 = TransformerConfig(
    vocab_size=260,
    topology='encoder_decoder',
    num_layers=1,
    embed_dim=16,
    num_heads=2,
    mlp_dim=32,
    max_length=32,
    position='relative',
    attention_scale=1.0,
    activation='gelu_tanh',
    tie_embeddings=False,
    scan_layers=False,
)
BERT = dataclasses.replace(
    MODEL,
    topology='encoder',
    embedding_norm=True,
    norm_placement='post',
    num_token_types=2,
    head='classifier',
    num_classes=3,
    pooler=True,
)


def random_params(model=MODEL):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: np.float32(rng.normal(size=leaf.shape, scale=0.1)), parameter_shapes(model)
    )


def framed_tokenizer():
    """Of bytes; its tokenizer.json puts <s> (257) before a text and the end (256) after it."""
    plain = train_tokenizer('bytes', [], special_tokens=['<s>']).to_json()
    backend = tokenizers.Tokenizer.from_str(plain)
    ends = [('<s>', 257), ('<|endoftext|>', 256)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single='<s> $A <|endoftext|>', special_tokens=ends
    )
    return Tokenizer(backend)


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


@pytest.mark.slow
def test_a_published_translator_is_evaluated_as_it_was_trained(folder, tmp_path):
    """Sources between the special tokens of its tokenizer, targets after its own first token."""
    start_id = 259
    params, start = random_params(T5), {'decoder_start_token_id': start_id}
    save_pretrained(tmp_path / 't5', T5, params, framed_tokenizer(), 't5', start)
    (tmp_path / 'pairs.tsv').write_text('ab\tcde\n')
    config = small_config(folder, 'seq2seq', tmp_path / 'pairs.tsv')
    config.model.topology = 'encoder_decoder'
    found = evaluate_pretrained(config, tmp_path / 't5', search=Search(max_new_tokens=4))

    source, target = [257, *b'ab', 256], [257, *b'cde', 256]
    model = Transformer(T5)
    batch = {'encoder_tokens': np.array([source]), 'tokens': np.array([[start_id, *target[:-1]]])}
    logits = model.apply({'params': params}, batch)
    expected = float(cross_entropy(logits, np.array([target])).mean())
    assert found.metrics['loss'] == pytest.approx(expected, rel=1e-5)
    assert found.metrics['tokens'] == len(target)
    options = {'temperature': 0, 'max_new_tokens': 4, 'eos_id': 256, 'vocab_limit': 258}
    (row,) = generate(model, params, [[start_id]], sources=[source], **options)
    assert found.hypotheses == [framed_tokenizer().decode(row)]


def small_config(folder, task, path):
    config = load_config(folder / 'config.py')
    config.task = task
    config.data.path = config.data.validation_path = (str(path),)
    return config


def test_rows_that_a_published_model_was_not_trained_on_are_refused(folder, tmp_path):
    pairs, tokenizer = tmp_path / 'pairs.tsv', train_tokenizer('bytes', [])
    pairs.write_text('ab\tno\nab\tyes\nb\tno\nc\tyes\n')
    config = small_config(folder, 'classification', pairs)
    config.model.topology = 'encoder'
    for given, labels, words in (
        (framed_tokenizer(), ['no', 'yes'], 'reads a text between special tokens'),
        (tokenizer, ['yes', 'no'], 'has the classes yes, no, LABEL_2, and the data has no, yes'),
    ):
        save_pretrained(tmp_path, BERT, random_params(BERT), given, 'bert', labels=labels)
        with pytest.raises(UserError, match=words):
            evaluate_pretrained(config, tmp_path)
    start = {'decoder_start_token_id': 259}
    save_pretrained(tmp_path / 't5', T5, random_params(T5), tokenizer, 't5', start)
    described = read_pretrained(tmp_path / 't5')
    with pytest.raises(UserError, match='begin with token 259, and those of span_corruption'):
        as_published('span_corruption', described, tmp_path)


def test_a_published_classifier_names_its_labels(tmp_path, capsys):
    params, labels = random_params(BERT), ['no', 'yes', 'maybe']
    save_pretrained(tmp_path, BERT, params, framed_tokenizer(), 'bert', labels=labels)
    generate_script.main([f'--pretrained={tmp_path}', '--prompt=ab', '--jsonl'])
    found = json.loads(capsys.readouterr().out)['probabilities']
    (expected,) = classify(Transformer(BERT), params, [[257, *b'ab', 256]])
    assert found == pytest.approx(dict(zip(labels, expected.tolist(), strict=True)))


def test_a_name_on_the_hub_is_as_good_as_a_folder(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hub._download.cache_clear()
    given = types.SimpleNamespace(snapshot_download=lambda name, **_: str(folder / 'gpt2'))
    monkeypatch.setitem(sys.modules, 'huggingface_hub', given)
    assert is_pretrained('someone/gpt2')
    (tmp_path / 'runs').mkdir()
    for local in 'runs/gone', 'gone', '/someone/gpt2':  # of a run, not of the hub
        assert not is_pretrained(local)

    flags = ['--prompt=the', '--temperature=0', '--max_new_tokens=4']
    generate_script.main(['--pretrained=someone/gpt2', *flags])
    assert capsys.readouterr().out.startswith('the')
    eval_script.main(['--pretrained=someone/gpt2', f'--config={folder / "config.py"}'])
    assert 'someone/gpt2, validation split' in capsys.readouterr().out
    config = load_config(folder / 'config.py')
    config.init_from = 'someone/gpt2'
    train(config, tmp_path / 'run')
    assert 'parameters of someone/gpt2' in capsys.readouterr().err
    hub._download.cache_clear()
    with pytest.raises(UserError, match=r'^There is no folder gpt2: give the folder'):
        generate_script.main(['--pretrained=gpt2', *flags])
