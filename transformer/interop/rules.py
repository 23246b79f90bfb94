"""Rules of the config that several families share."""

import math
from collections.abc import Callable
from typing import Any

from transformer.config import TransformerConfig
from transformer.errors import UserError
from transformer.interop.family import REQUIRED, Published, Rule, field, known

# The first name of each is what we write.
ACTIVATIONS = {
    'relu': 'relu',
    'gelu': 'gelu',
    'gelu_new': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'silu': 'silu',
    'swish': 'silu',
    'relu2': 'relu_squared',
}
SCALINGS = {
    'default': 'none',
    'linear': 'linear',
    'dynamic': 'dynamic',
    'yarn': 'yarn',
    'llama3': 'llama3',
}
# Numbers of a scaling: published name -> ours and the default.
SCALING_NUMBERS = {
    'linear': {'factor': ('factor', REQUIRED)},
    'dynamic': {'factor': ('factor', REQUIRED)},
    'yarn': {
        'factor': ('factor', REQUIRED),
        'original_max_position_embeddings': ('original_length', None),
        'beta_fast': ('beta_fast', 32.0),
        'beta_slow': ('beta_slow', 1.0),
        'attention_factor': ('attention_factor', None),
    },
    'llama3': {
        'factor': ('factor', REQUIRED),
        'original_max_position_embeddings': ('original_length', None),
        'low_freq_factor': ('low_frequency_factor', REQUIRED),
        'high_freq_factor': ('high_frequency_factor', REQUIRED),
    },
}
KINDS = {'full_attention': 'global', 'sliding_attention': 'local'}


def rope(base: float = 10_000.0, fraction: float = 1.0) -> Rule:
    """Rotary embeddings and max_length, with the family's default base and rotated fraction."""

    def read(published):
        given = published.get('rope_parameters') or published.get('rope_scaling') or {}
        length = published.get('max_position_embeddings', REQUIRED)
        ours = read_rope(given, length) | {
            'rope.base': given.get('rope_theta')
            or published.get('rope_theta')
            or published.get('rotary_emb_base', base),
            'rope.fraction': given.get('partial_rotary_factor')
            or published.get('partial_rotary_factor')
            or published.get('rotary_pct', fraction),
        }
        if ours['rope.scaling'] == 'dynamic':  # published is where the growth begins
            ours['rope.original_length'] = length
            length = int(length * ours['rope.factor'])
        return ours | {'position': 'rope', 'max_length': length}

    def write(config):
        length, parameters = config.max_length, write_rope(config)
        if config.rope.fraction != 1:
            parameters['partial_rotary_factor'] = config.rope.fraction
        if config.rope.scaling == 'dynamic':
            length = config.rope.original_length or length
        return {'rope_parameters': parameters, 'max_position_embeddings': length}

    return Rule(read, write)


def read_rope(given: dict[str, Any], length: int) -> dict[str, Any]:
    """Our fields of the scaling in a published rope_parameters, or older rope_scaling."""
    kind = given.get('rope_type', given.get('type', 'default'))
    ours = {'rope.scaling': known(SCALINGS, kind, 'rope_type')}
    if kind == 'yarn':
        given = _yarn(given, length)
    for theirs, (name, default) in SCALING_NUMBERS.get(kind, {}).items():
        value = given.get(theirs)
        if value is None and default is REQUIRED:
            raise UserError(f'config.json has rope_type {kind!r} without {theirs}.')
        ours[f'rope.{name}'] = default if value is None else value
    if 'rope.original_length' in ours and ours['rope.original_length'] is None:
        ours['rope.original_length'] = length
    return ours


def write_rope(config: TransformerConfig) -> dict[str, Any]:
    """The published rope_parameters of a config, without the rotated fraction."""
    kind = next((kind for kind, ours in SCALINGS.items() if ours == config.rope.scaling), None)
    if kind is None:
        raise UserError(f'model.rope.scaling {config.rope.scaling!r} has no name in config.json.')
    parameters = {'rope_type': kind, 'rope_theta': config.rope.base}
    for theirs, (name, _) in SCALING_NUMBERS.get(kind, {}).items():
        value = getattr(config.rope, name)
        if name == 'original_length' and value is None:
            value = config.max_length
        if value is not None:
            parameters[theirs] = value
    return parameters


def _yarn(given, length):
    """YaRN with `factor` and `attention_factor` where other fields stand for them."""
    if given.get('truncate') is False:
        raise UserError("config.json has rope_type 'yarn' with truncate false: we truncate only.")
    given = dict(given)
    if given.get('factor') is None and given.get('original_max_position_embeddings'):
        given['factor'] = length / given['original_max_position_embeddings']
    scales = given.get('mscale'), given.get('mscale_all_dim')
    if given.get('attention_factor') is None and all(scales) and given.get('factor'):
        sharpened, weakened = (0.1 * s * math.log(given['factor']) + 1 for s in scales)
        given['attention_factor'] = sharpened / weakened
    return given


def layer_types(default: Callable[[Published, int], str], window: int, **flags: bool) -> Rule:
    """Sliding windows by layer.

    Args:
        default: (published, number of the layer) -> its kind, where no layer_types are listed.
        window: the family's default.
        flags: further fields that are written where there is a window; their contrary elsewhere.
    """

    def read(published):
        depth = published.get('num_hidden_layers', REQUIRED)
        types = published.get('layer_types') or [default(published, i) for i in range(depth)]
        kinds = tuple(known(KINDS, kind, 'layer_types') for kind in types)
        if 'local' not in kinds:
            return {'window': None, 'layer_pattern': ()}
        pattern = () if 'global' not in kinds else shortest_period(kinds)
        return {'window': published.get('sliding_window', window), 'layer_pattern': pattern}

    def write(config):
        names = {ours: theirs for theirs, ours in KINDS.items()}
        kinds = [config.pattern[i % len(config.pattern)] for i in range(config.num_layers)]
        present = 'local' in kinds
        return {
            'layer_types': [names[kind] for kind in kinds],
            'sliding_window': config.window if present else None,
        } | {name: flag == present for name, flag in flags.items()}

    return Rule(read, write)


def shortest_period(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The least pattern that, repeated and cut, makes these kinds of layers."""
    for period in range(1, len(kinds) + 1):
        if all(kind == kinds[i % period] for i, kind in enumerate(kinds)):
            return kinds[:period]
    raise ValueError('There are no layers.')


def lm_head(module: str, tied: bool) -> Rule:
    """A language-model head, tied by default or not; none where the file has not got it."""

    def read(published):
        tie = published.get('tie_word_embeddings', tied)
        head = 'lm' if tie or published.has(module) else 'none'
        return {'head': head, 'tie_embeddings': bool(tie)}

    return Rule(read, lambda config: {'tie_word_embeddings': config.tie_embeddings})


def label_names(published: Published) -> tuple[str, ...]:
    """The names of a classifier's classes, in order."""
    unnamed = {i: f'LABEL_{i}' for i in range(published.get('num_labels', 2))}
    names = published.get('id2label') or unnamed
    return tuple(names[i] for i in sorted(names, key=int))


def encoder_heads(
    masked_lm: str, pooler: str | None = None, classifier: tuple[str, str] = ('', '')
) -> Rule:
    """The heads of a BERT-like encoder that the file has, by their modules.

    Args:
        pooler: of the model without a head.
        classifier: its pooler and its last layer.
    """

    def read(published):
        tie = published.get('tie_word_embeddings', True)
        ours = {'head': 'none', 'tie_embeddings': True, 'head_bias': False}
        if pooler is not None:
            ours['pooler'] = published.has(pooler)
        if published.has(masked_lm):
            ours |= {'head': 'masked_lm', 'head_bias': True, 'tie_embeddings': bool(tie)}
        elif all(map(published.has, classifier)):
            classes = len(label_names(published))
            ours |= {'head': 'classifier', 'num_classes': classes, 'pooler': True}
        return ours

    def write(config):
        fields = {'tie_word_embeddings': config.tie_embeddings}
        if config.head == 'classifier':
            fields['id2label'] = {str(i): f'LABEL_{i}' for i in range(config.num_classes)}
            fields['label2id'] = {f'LABEL_{i}': i for i in range(config.num_classes)}
        return fields

    return Rule(read, write)


def attention_bias(default: bool) -> Rule:
    """A bias of all projections of attention, or of none."""
    return field('attention_bias', 'attention_bias', default, {False: 'none', True: 'all'})


def scaled_embedding(name: str) -> Rule:
    """Whether embedded tokens are multiplied by the square root of their width."""

    def read(published):
        width = published.get('d_model', REQUIRED)
        return {'embed_scale': width**0.5 if published.get(name, False) else 1.0}

    return Rule(read, lambda config: {name: config.embed_scale != 1})
