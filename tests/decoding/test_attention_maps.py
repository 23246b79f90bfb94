"""Attention weights against the pure functions, and what a picture of them shows."""

import dataclasses
import functools
import io
import itertools

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from transformer.config import TransformerConfig
from transformer.data.tokenizers import train_tokenizer
from transformer.decoding import attention_maps
from transformer.decoding.attention_maps import (
    MAX_CELLS,
    attention_weights,
    choose_fonts,
    make_labels,
    plot_attention,
)
from transformer.errors import UserError
from transformer.functional import (
    dot_product_attention,
    multi_head_attention,
    rms_norm,
    split_heads,
)
from transformer.modules import Transformer, unstack_layers

SMALL = {
    'vocab_size': 30,
    'num_layers': 1,
    'embed_dim': 16,
    'num_heads': 4,
    'num_kv_heads': 2,
    'mlp_dim': 16,
    'max_length': 700,
}
TOKENS, SOURCE = [3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5]
TEXT = 'The café costs $5, or 三百円.\nหนึ่ง \\n'


@functools.cache
def make(**changes):
    model = Transformer(TransformerConfig(**SMALL | changes))
    batch = {'tokens': np.ones((1, 2), int), 'encoder_tokens': np.ones((1, 2), int)}
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)['params']
    random = np.random.default_rng(0)
    return model, jax.tree.map(lambda x: random.normal(0, 0.5, x.shape).astype(x.dtype), shapes)


def render(figure):
    figure.savefig(io.BytesIO(), format='png', dpi=30, bbox_inches='tight')


@pytest.fixture
def bundled_fonts(monkeypatch):
    """Only the fonts that come with matplotlib."""
    bundled = [font for font in fontManager.ttflist if 'mpl-data' in font.fname]
    monkeypatch.setattr(fontManager, 'ttflist', bundled)


@pytest.mark.parametrize('topology', ['decoder', 'encoder', 'encoder_decoder'])
def test_weights_of_scanned_layers_are_those_of_unrolled_ones(topology):
    """A period and a layer more; rows sum to 1, and who sees whom."""
    model, params = make(
        topology=topology, num_layers=3, layer_pattern=('local', 'global'), window=3
    )
    source = SOURCE if topology == 'encoder_decoder' else None
    layers = attention_weights(model, params, TOKENS, source)
    assert len(layers) == 3
    for weights in layers:
        assert weights.shape == (4, 7, 4 if source else 7)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    if not source:
        key, query = np.meshgrid(range(7), range(7))
        for i, weights in enumerate(layers):
            seen = np.abs(query - key) < (3 if i % 2 == 0 else 7)
            if topology == 'decoder':
                seen &= key <= query
            np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))
    assert all(np.abs(a - b).max() > 0.01 for a, b in itertools.combinations(layers, 2))

    config = dataclasses.replace(model.config, scan_layers=False, remat='full')
    unrolled = attention_weights(
        Transformer(config), unstack_layers(params, config), TOKENS, source
    )
    np.testing.assert_allclose(layers, unrolled, atol=1e-6)


@pytest.mark.parametrize('topology', ['decoder', 'encoder_decoder'])
def test_weights_are_those_of_the_pure_function(topology):
    """One layer with the norms behind, so that attention reads the embedded tokens."""
    model, params = make(
        topology=topology, position='none', norm_placement='post', scan_layers=False
    )
    source = SOURCE if topology == 'encoder_decoder' else None
    (weights,) = attention_weights(model, params, TOKENS, source)

    @jax.jit
    def expected(params):
        block = params['decoder']['layer_0']

        def kernels(name):
            return [block[name][part]['kernel'] for part in ('query', 'key', 'value', 'out')]

        memory = x = params['embedding']['table'][np.array([TOKENS])]  # [1, T, D]
        kind = 'self_attention'
        if source:
            batch = {'encoder_tokens': np.array([source])}
            memory = model.apply({'params': params}, batch, method='encode')  # [1, S, D]
            x += multi_head_attention(x, None, *kernels(kind), is_causal=True)
            x = rms_norm(x, block['self_attention_norm']['scale'], eps=1e-6)
            kind = 'cross_attention'
        query, key, value, _ = kernels(kind)
        return dot_product_attention(
            split_heads(x, query),
            split_heads(memory, key),
            split_heads(memory, value),
            is_causal=not source,
            return_weights=True,
        )[1]

    np.testing.assert_allclose(weights, expected(params)[0], atol=1e-6)


@pytest.mark.parametrize(
    ('changes', 'tokens', 'source', 'message'),
    [
        ({}, TOKENS, SOURCE, "'decoder' has no source"),
        ({'topology': 'encoder_decoder'}, TOKENS, None, 'give the source tokens'),
        ({}, [], None, 'tokens must be 1 to model.max_length 700 ids, not 0'),
        ({'topology': 'encoder_decoder'}, TOKENS, [0] * 701, 'source must be .* not 701'),
        ({}, [3, 30], None, 'tokens has token 30, outside the model vocabulary of 30'),
        ({'topology': 'encoder_decoder'}, TOKENS, [-1], 'source has token -1'),
        (
            {'topology': 'encoder_decoder', 'share_embeddings': False, 'encoder_vocab_size': 6},
            TOKENS,
            SOURCE,
            'source has token 6, outside the model vocabulary of 6',
        ),
        ({}, [1] * 151, None, '4 heads of 151 tokens are 604 cells .* at most 150 tokens'),
        (
            {'topology': 'encoder_decoder', 'num_layers': 90},
            TOKENS,
            SOURCE,
            '90 layers of 7 tokens .* at most 6 tokens',
        ),
    ],
)
def test_wrong_tokens_are_refused_before_device_work(
    tmp_path, monkeypatch, changes, tokens, source, message
):
    monkeypatch.setattr(attention_maps, '_weights', None)
    model = Transformer(TransformerConfig(**SMALL | changes))
    with pytest.raises(UserError, match=message) as error:
        plot_attention(model, None, None, tokens, tmp_path / 'a.png', source)
    assert '\n' not in str(error.value)
    assert not list(tmp_path.iterdir())
    if 'cells' not in str(error.value):
        with pytest.raises(UserError, match=message):
            attention_weights(model, None, tokens, source)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('a.gif', "must be one of .pdf, .png, .svg; not '.gif'"),
        ('a', "not ''"),
        ('missing/a.png', 'missing/a.png cannot be written .No such file'),
        ('folder.png', 'folder.png cannot be written .Is a directory'),
        ('x' * 300 + '.png', 'cannot be written .File name too long'),
    ],
)
def test_wrong_paths_are_refused_before_device_work(tmp_path, monkeypatch, name, message):
    monkeypatch.setattr(attention_maps, '_weights', None)
    (tmp_path / 'folder.png').mkdir()
    with pytest.raises(UserError, match=message) as error:
        plot_attention(*make(), None, TOKENS, tmp_path / name)
    assert '\n' not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ['folder.png']


def test_pictures_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """Each format by its first bytes; a failure leaves what was there."""
    tokenizer = train_tokenizer('chars', ['a$\\_^{三ก'])
    tokens = [*tokenizer.encode('$\\a_^{三ก'), tokenizer.eos_id]
    draw = functools.partial(plot_attention, *make(), tokenizer, tokens)
    for ending, start in ('.png', b'\x89PNG'), ('.PDF', b'%PDF'), ('.svg', b'<?xml'):
        path = tmp_path / f'map{ending}'
        path.write_bytes(b'old')
        draw(path)
        assert path.read_bytes().startswith(start)

    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Figure, 'savefig', fail)
    with pytest.raises(MemoryError):
        draw(path)
    assert path.read_bytes().startswith(b'<?xml')
    assert len(list(tmp_path.iterdir())) == 3


def test_source_and_output_have_their_own_tokenizers(tmp_path, monkeypatch):
    figures = []

    def keep(figure, *_, **__):
        figures.append(figure)

    monkeypatch.setattr(Figure, 'savefig', keep)
    source_tokenizer = train_tokenizer('chars', ['xyz'])
    tokenizer = train_tokenizer('chars', ['abc'])
    model, params = make(topology='encoder_decoder')
    plot_attention(
        model, params, tokenizer, [2, 0, 1], tmp_path / 'a.png', [1, 0], source_tokenizer
    )
    axes = figures[0].axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ['c', 'a', 'b']
    assert [text.get_text() for text in axes.get_xticklabels()] == ['y', 'x']
    assert (axes.get_ylabel(), axes.get_xlabel()) == ('output token', 'source token')


def test_the_figure_shows_every_head_of_every_layer(bundled_fonts):
    weights = np.random.default_rng(0).random((2, 3, 4, 5))
    texts, key_texts = (
        ['\U0001d4ab', 'bc', '三', 'e\u0301'],
        [r'$\nonsense{$', '\n', ' x', 'ก', 'ab'],
    )
    figure = attention_maps._draw(weights, texts, key_texts, is_cross=True)
    render(figure)  # mathematics would raise, and glyphs that lack would warn
    *panels, bar = figure.axes
    for axes, (layer, head) in zip(panels, np.ndindex(2, 3), strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), weights[layer, head])
        assert image.get_clim() == (0, 1)
        assert axes.get_title() == f'layer {layer}, head {head}'
        rows = [text.get_text() for text in axes.get_yticklabels()]
        columns = [text.get_text() for text in axes.get_xticklabels()]
        assert rows == (['\U0001d4ab', 'bc', 'U+4E09', 'e\u0301'] if head == 0 else [])
        assert columns == ([r'$\\nonsense{$', r'\n', '␣x', 'U+0E01', 'ab'] if layer == 1 else [])
    assert bar.get_ylim() == (0, 1)
    assert bar.get_ylabel() == 'attention weight'


@pytest.mark.parametrize('shape', [(1, 1, 1, 1), (2, 8, 60, 75), (1, 1, 600, 2), (2, 12, 1, 50)])
def test_labels_stay_legible_and_pictures_of_a_size_that_opens(shape):
    layers, heads, T, S = shape
    assert layers * T <= MAX_CELLS >= heads * S
    figure = attention_maps._draw(np.zeros(shape), ['a'] * T, ['ab'] * S, is_cross=True)
    assert figure.get_size_inches().max() <= 70
    axes = figure.axes[0]
    for label in [*axes.get_yticklabels(), *figure.axes[-2].get_xticklabels()]:
        assert 6 <= label.get_fontsize() <= 9
    height = figure.get_figheight() * axes.get_position().height / T
    assert height * 72 > axes.get_yticklabels()[0].get_fontsize() if T > 1 else True


@pytest.mark.parametrize(
    ('text', 'label'),
    [
        ('', ''),
        (' the', '␣the'),
        ('  ', '␣␣'),
        ('\r\n\t', r'\r\n\t'),
        (r'\n', r'\\n'),
        (' \udce4\udcb8', r'␣\xe4\xb8'),
        ('$x_1$', '$x_1$'),
        ('三a月', 'U+4E09 a U+6708'),
        ('שלום', 'שלום'),
        ('سلام', 'سلام'),
        ('می\u200cخواهم', 'می\u200cخواهم'),  # a joiner between letters, which shapes them
        ('\u200cخ', 'U+200C خ'),
        ('\u200d', 'U+200D'),
        ('e\u0301', 'e\u0301'),
        ('\u0301', '◌\u0301'),
        ('\u0e35', 'U+0E35'),
        ('a\u202eb\u3000', 'a U+202E b U+3000'),  # would turn the label around
        ('\ue000\U0010ffff', 'U+E000 U+10FFFF'),
        ('😀', '😀'),
        ('\U0001fae8', 'U+1FAE8'),
        ('x' * 24, 'x' * 24),
        ('x' * 25, 'x' * 24 + '…'),
        ('三' * 9, 'U+4E09 U+4E09 U+4E09 …'),
    ],
)
def test_labels_can_be_seen(bundled_fonts, text, label):
    labels, families = make_labels([text])
    assert labels == [label]
    figure = Figure()
    figure.text(0, 0, label, fontfamily=families, parse_math=False)
    render(figure)  # a glyph that lacks would warn


def test_other_fonts_stand_in_for_what_the_first_lacks(bundled_fonts):
    """STIX has a script P, cmsy10 and STIXNonUnicode are of no use, nothing has a 三."""
    assert choose_fonts('a') == (['DejaVu Sans'], set())
    families, missing = choose_fonts('a\U0001d4ab三')
    assert families == ['DejaVu Sans', 'STIXGeneral']
    assert missing == {'三'}
    assert matplotlib.rcParams['font.family'] == ['sans-serif']
