"""TransformerConfig: the architecture, validated, with every default in one place."""

import dataclasses
import types
import typing
from typing import Any, Literal

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.errors import UserError, check_choice, nearest
from transformer.ranges import check_ranges, flat

NTK = ('ntk', 'dynamic')  # scalings of RoPE's base, with an exponent d / (d - 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding; `transformer.functional.frequencies` has the equations."""

    base: float = 10_000.0  # angle of pair i at position p: p * base^(-2i / rotated dimensions)
    local_base: float | None = None  # of 'local' layers, which are then unscaled; None: as base
    fraction: float = 1.0  # of head_dim that is rotated, from the front
    layout: Literal['half', 'interleaved'] = 'half'  # a pair is (i, i + d/2) or (2i, 2i + 1)
    scaling: Literal['none', 'linear', 'ntk', 'dynamic', 'yarn', 'llama3'] = 'none'
    factor: float = 1.0  # context extension
    original_length: int | None = None  # length trained before scaling; None: max_length
    low_frequency_factor: float = 1.0  # llama3
    high_frequency_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # of cosines and sines; None: the scaling's own


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeConfig:
    """T5's bucketed relative positions (Raffel et al. 2020, section 2.1)."""

    num_buckets: int = 32
    max_distance: int = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The architecture of one model. Sizes are in elements, names are those of the literature.

    Raises:
        UserError: a choice, a size or a combination that does not make a model.
    """

    # Topology and size.
    topology: Literal['decoder', 'encoder', 'encoder_decoder'] = 'decoder'
    vocab_size: int  # rows of the embedding table
    encoder_vocab_size: int | None = None  # of an encoder's own table; None: vocab_size
    num_layers: int = 6  # of the stack that makes the logits
    num_encoder_layers: int | None = None  # of an encoder_decoder's encoder; None: num_layers
    embed_dim: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None  # key and value heads; None: num_heads
    head_dim: int | None = None  # None: embed_dim / num_heads
    mlp_dim: int = 2048  # inner width of the feed-forward
    max_length: int = 1024  # longest sequence: rows of a learned table, limit of generation

    # Positions.
    position: Literal['none', 'sinusoidal', 'learned', 'rope', 'alibi', 'relative'] = 'rope'
    sinusoidal_layout: Literal['interleaved', 'half'] = 'interleaved'
    position_offset: int = 0  # rows of a learned table before that of position 0 (OPT, RoBERTa)
    rope: RopeConfig = RopeConfig()
    relative: RelativeConfig = RelativeConfig()

    # Norms.
    norm: Literal['layernorm', 'rmsnorm'] = 'rmsnorm'
    # parallel: attention and feed-forward read one norm (GPT-J); parallel_two: each its own.
    norm_placement: Literal['pre', 'post', 'sandwich', 'parallel', 'parallel_two', 'deepnorm'] = (
        'pre'
    )
    norm_eps: float = 1e-6
    norm_bias: bool = True  # a layernorm has a bias beside its scale
    norm_offset: float = 0.0  # added to every norm's learned scale (Gemma: 1)
    embedding_norm: bool = False  # a norm right after the embeddings (BERT, BLOOM)
    qk_norm: bool = False  # an RMS norm over each query and key head

    # Attention.
    attention_bias: Literal['none', 'qkv', 'all'] = 'none'  # which projections have a bias
    attention_scale: float | None = None  # of the logits; None: head_dim^-0.5
    attention_softcap: float | None = None  # c * tanh(logits / c)
    attention_implementation: Literal['auto', 'xla', 'blockwise', 'cudnn', 'pallas'] = 'auto'
    window: int | None = None  # keys a 'local' layer sees, the query's own included
    # Kinds of successive layers, repeated: 'global' or 'local'. Empty: all 'local' if there is a
    # window, else all 'global'.
    layer_pattern: tuple[str, ...] = ()

    # Feed-forward.
    feed_forward: Literal['mlp', 'glu'] = 'glu'
    activation: Literal['relu', 'gelu', 'gelu_tanh', 'silu', 'relu_squared'] = 'silu'
    mlp_bias: bool = False

    # Embeddings and head.
    # Of token tables whose rows are projected to embed_dim, as features are to this width before
    # the logits (Lan et al. 2020, section 3.1; OPT-350m); None: embed_dim, without projections.
    embedding_width: int | None = None
    embed_scale: float = 1.0  # factor on embedded tokens (the paper: embed_dim^0.5)
    num_token_types: int = 0  # BERT's segment embeddings
    tie_embeddings: bool = True  # the head is the embedding table
    share_embeddings: bool = True  # an encoder_decoder has one table for both stacks
    # masked_lm: dense, activation and norm before the table; classifier: of `pooled` features.
    head: Literal['lm', 'masked_lm', 'classifier', 'none'] = 'lm'
    num_classes: int | None = None  # of a classifier
    head_bias: bool = False
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    pooling: Literal['first', 'mean'] = 'first'  # tokens of an encoder that make a row's vector
    pooler: bool = False  # a projection of that vector and an activation (BERT)
    pooler_activation: Literal['tanh', 'relu'] = 'tanh'

    # Initialisation: 'normal' N(0, init_std); 'gpt2' the same, residual outputs divided by
    # sqrt(2 * layers); 'fan_in' N(0, 1 / fan in); 'xavier' uniform.
    init: Literal['normal', 'gpt2', 'fan_in', 'xavier'] = 'gpt2'
    init_std: float = 0.02
    embedding_std: float | None = None  # None: init_std, or table_width^-0.5 with 'xavier'

    # Computation.
    dtype: Literal['float32', 'bfloat16', 'float16', 'float64'] = 'float32'
    param_dtype: Literal['float32', 'bfloat16', 'float16', 'float64'] = 'float32'
    scan_layers: bool = True  # one compiled layer run num_layers times, instead of num_layers
    remat: Literal['none', 'full', 'dots_saveable', 'dots_with_no_batch_dims_saveable'] = 'none'

    def __post_init__(self):
        for config, prefix in (self, ''), (self.rope, 'rope.'):
            for name, hint in typing.get_type_hints(type(config)).items():
                if typing.get_origin(hint) is Literal:
                    choices = typing.get_args(hint)
                    check_choice(getattr(config, name), choices, f'model.{prefix}{name}')
        for kind in self.layer_pattern:
            check_choice(kind, ('global', 'local'), 'model.layer_pattern')
        check_ranges(flat(dataclasses.asdict(self), 'model.'))
        self._check_sizes()
        self._check_combinations()

    def _check_sizes(self):
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise UserError(
                f'model.embed_dim {self.embed_dim} is not a multiple of model.num_heads '
                f'{self.num_heads}: change one, or set model.head_dim.'
            )
        if self.num_heads % self.kv_heads:
            raise UserError(
                f'model.num_heads {self.num_heads} is not a multiple of model.num_kv_heads '
                f'{self.kv_heads}.'
            )
        if self.position == 'rope' and (
            self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.dim_per_head
        ):
            raise UserError(
                f'model.rope.fraction {self.rope.fraction} rotates {self.rotary_dim} of '
                f'{self.dim_per_head} dimensions of a head; '
                'the number must be even, positive and at most that.'
            )
        if self.position == 'rope' and self.rope.scaling in NTK and self.rotary_dim < 4:
            raise UserError(
                f'model.rope.scaling {self.rope.scaling!r} needs at least 4 rotated dimensions of '
                f'a head, not {self.rotary_dim}: raise model.rope.fraction or model.head_dim.'
            )
        if self.position == 'sinusoidal' and self.embed_dim % 2:
            raise UserError(
                f'model.embed_dim must be even for sinusoidal positions, not {self.embed_dim}.'
            )

    def _check_combinations(self):
        rope, relative = self.rope, self.relative
        for low, high in (
            ('low_frequency_factor', 'high_frequency_factor'),
            ('beta_slow', 'beta_fast'),
        ):
            if getattr(rope, low) >= getattr(rope, high):
                raise UserError(
                    f'model.rope.{low} {getattr(rope, low)} must be less than model.rope.{high} '
                    f'{getattr(rope, high)}.'
                )
        least = 2 if self.topology == 'decoder' else 4  # an encoder tells two directions apart
        if self.position == 'relative' and not (
            least <= relative.num_buckets < 2 * relative.max_distance
        ):
            raise UserError(
                f'model.relative.num_buckets must be at least {least} and less than twice '
                f'model.relative.max_distance {relative.max_distance}, not {relative.num_buckets}.'
            )
        if 'local' in self.layer_pattern and self.window is None:
            raise UserError("model.layer_pattern has 'local' layers: set model.window.")
        if self.num_encoder_layers and self.topology != 'encoder_decoder':
            raise UserError(
                'model.num_encoder_layers is for an encoder_decoder; topology '
                f'{self.topology!r} has model.num_layers.'
            )
        if (self.pooler or self.head == 'classifier') and self.topology != 'encoder':
            what = 'pooler' if self.pooler else "head 'classifier'"
            raise UserError(f'model.{what} is for encoders, not for topology {self.topology!r}.')
        if (self.head == 'classifier') != (self.num_classes is not None):
            raise UserError(
                "model.head 'classifier' needs model.num_classes, and no other head has classes."
            )
        if self.encoder_vocab_size and (
            self.topology != 'encoder_decoder' or self.share_embeddings
        ):
            raise UserError(
                'model.encoder_vocab_size is for an encoder_decoder with a table for each side: '
                'set model.share_embeddings=false.'
            )
        if self.norm_placement.startswith('parallel') and self.topology == 'encoder_decoder':
            raise UserError(
                f'model.norm_placement {self.norm_placement!r} has no place for cross-attention: '
                'choose another.'
            )

    @property
    def dim_per_head(self) -> int:
        return self.head_dim or self.embed_dim // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def encoder_layers(self) -> int:
        return self.num_encoder_layers or self.num_layers

    @property
    def table_width(self) -> int:
        return self.embedding_width or self.embed_dim

    @property
    def rotary_dim(self) -> int:
        return int(self.dim_per_head * self.rope.fraction)

    @property
    def pattern(self) -> tuple[str, ...]:
        """Kinds of the layers of one period, 'global' or 'local'."""
        return self.layer_pattern or ('local' if self.window else 'global',)


def model_fields(cls: type) -> ConfigDict:
    """The fields of a config dataclass as a ConfigDict; unset optional ones are placeholders."""
    fields = ConfigDict()
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            fields[field.name] = model_fields(hints[field.name])
        elif field.default is dataclasses.MISSING or field.default is None:
            fields[field.name] = placeholder(_plain_type(hints[field.name]))
        else:
            fields[field.name] = field.default
    return fields


def transformer_config(model: ConfigDict, **changes: Any) -> TransformerConfig:
    """The TransformerConfig of `config.model`, with some fields replaced by `changes`.

    Raises:
        UserError: an unknown field, a missing vocab_size, or values that make no model.
    """
    values = model.to_dict() | changes
    if values.get('vocab_size') is None:
        raise UserError('model.vocab_size is not set: give the number of tokens.')
    values['layer_pattern'] = tuple(values['layer_pattern'])
    return _make(TransformerConfig, values, 'model')


def _make(cls: type, values: dict[str, Any], section: str) -> Any:
    """The dataclass with these values, those of its inner dataclasses included."""
    hints = typing.get_type_hints(cls)
    for name, value in values.items():
        if name not in hints:
            raise UserError(f'{section}.{name} is not a field of {section}.{nearest(name, hints)}')
        if isinstance(value, dict):
            values[name] = _make(hints[name], value, f'{section}.{name}')
    return cls(**values)


def _plain_type(hint: Any) -> type:
    """int for `int | None`."""
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint
