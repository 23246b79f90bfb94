"""The range of every number in a config."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer.errors import UserError


class Range(NamedTuple):
    """What a message calls it, and whether a number is in it."""

    text: str
    holds: Callable[[float], bool]


ANY = Range('a number of float32', lambda value: True)
AT_LEAST_0 = Range('at least 0', lambda value: value >= 0)
AT_LEAST_1 = Range('at least 1', lambda value: value >= 1)
POSITIVE = Range('positive', lambda value: value > 0)
SHARE = Range('in [0, 1)', lambda value: 0 <= value < 1)
PROPORTION = Range('in [0, 1]', lambda value: 0 <= value <= 1)
INSIDE = Range('between 0 and 1', lambda value: 0 < value < 1)
LARGEST = {int: 2**31 - 1, float: 3.4e38}  # what devices count and compute with: int32, float32

_NAMES = {
    ANY: """
        model.attention_scale model.embed_scale model.logits_scale model.norm_offset
        data.validation_fraction schedule.end_factor""",
    AT_LEAST_0: """
        seed model.norm_eps model.position_offset model.num_token_types model.init_std
        model.embedding_std lora.rank data.seed data.vocab_size loss.z_loss loss.chunk
        optimizer.weight_decay optimizer.eps optimizer.clip_norm optimizer.adam_factor
        schedule.warmup_steps train.eval_every train.eval_batches
        train.decode_pairs train.checkpoint_every""",
    AT_LEAST_1: """
        corruption.mean_span
        model.vocab_size model.encoder_vocab_size model.num_classes model.num_layers
        model.num_encoder_layers model.embed_dim model.embedding_width model.num_heads
        model.num_kv_heads model.head_dim model.mlp_dim model.max_length model.window
        model.rope.factor model.rope.original_length
        model.relative.num_buckets model.relative.max_distance
        data.length data.source_length data.source_vocab_size data.batch_size schedule.decay_steps
        train.steps train.accumulation train.log_every train.keep_checkpoints parallel.devices""",
    POSITIVE: """
        lora.alpha
        model.attention_softcap model.logits_softcap model.rope.base model.rope.local_base
        model.rope.fraction model.rope.low_frequency_factor model.rope.high_frequency_factor
        model.rope.beta_fast model.rope.beta_slow model.rope.attention_factor
        optimizer.learning_rate train.peak_flops""",
    SHARE: """
        dropout.attention dropout.residual dropout.embedding loss.label_smoothing
        optimizer.b1 optimizer.b2 train.ema_decay""",
    PROPORTION: 'corruption.replace corruption.random',
    INSIDE: 'corruption.rate',
}
RANGES = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def check_ranges(values: Mapping[str, Any]) -> None:
    """Checks the numbers among `values`, by dotted field name; unset fields have any.

    Raises:
        UserError: one that is out of its range, or beyond int32 or float32.
    """
    for name, value in values.items():
        if name not in RANGES or type(value) not in LARGEST:
            continue
        expected, largest = RANGES[name], LARGEST[type(value)]
        if not expected.holds(value):
            raise UserError(f'{name} must be {expected.text}, not {value}.')
        if not abs(value) <= largest:  # nor NaN
            raise UserError(f'{name} must be at most {largest:,}, not {value}.')


def flat(values: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    """The values of nested dicts by dotted name, with `prefix` before it."""
    result = {}
    for name, value in values.items():
        inside = isinstance(value, dict)
        result |= flat(value, f'{prefix}{name}.') if inside else {f'{prefix}{name}': value}
    return result
