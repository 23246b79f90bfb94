"""Published models, as folders of Hugging Face's `transformers`, in and out."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import RelativeConfig, RopeConfig, TransformerConfig
from transformer.data.tokenizers import FILE_NAME, Tokenizer, load_tokenizer
from transformer.errors import UserError, choose
from transformer.interop import files
from transformer.interop.families import FAMILIES
from transformer.interop.family import Family, Published
from transformer.interop.hub import find_model
from transformer.interop.rules import label_names
from transformer.interop.tensors import file_names, load_parameters, places, published_tensors
from transformer.ranges import flat

# Fields that say how a model is made or run, not what it computes.
NO_ARCHITECTURE = {'init', 'init_std', 'embedding_std', 'dtype', 'param_dtype', 'scan_layers'}
NO_ARCHITECTURE |= {'remat', 'attention_implementation'}
# How the classes of `transformers` end whose heads are ours only where a family names them.
HEADS = ('Classification', 'QuestionAnswering', 'MultipleChoice', 'SentencePrediction')


class Description(NamedTuple):
    """What the files of a published model say beside its parameters.

    Attributes:
        tokenizer: None without a tokenizer.json.
        labels: of a classifier, the names of its classes.
        start_id: of a decoder beside an encoder, the token that begins what it writes.
    """

    config: TransformerConfig
    tokenizer: Tokenizer | None
    labels: tuple[str, ...]
    start_id: int | None


def load_pretrained(
    path: str | Path,
    *,
    scan_layers: bool = False,
    dtype: str = 'float32',
    param_dtype: str = 'float32',
) -> tuple[TransformerConfig, dict[str, Any], Tokenizer | None]:
    """A published model in a local folder, as `transformers` saves it, or on the hub.

    Parameters are read and placed one by one, so that no more than one is in memory twice.

    Args:
        path: folder with config.json, model.safetensors or its shards and their index, and
            tokenizer.json, if it has one; or, where there is no such folder, a name on the Hugging
            Face hub such as 'openai-community/gpt2', which needs `huggingface_hub`.
        scan_layers: of the config; the parameters are then stacked.
        dtype, param_dtype: of the config, which computes in one and holds parameters in the other.

    Returns:
        The config, the parameters of `Transformer(config)`, and the tokenizer.

    Raises:
        UserError: no such folder or name, weights that are a pickle, a model_type, head, activation
            or scaling that we do not have, tensors left over or missing.
    """
    folder = find_model(path)
    with files.open_tensors(folder) as tensors:
        family, config = _read_family(folder, tensors)
        config = dataclasses.replace(
            config, scan_layers=scan_layers, dtype=dtype, param_dtype=param_dtype
        )
        params = load_parameters(family, config, tensors)
    return config, params, _read_tokenizer(folder)


def read_pretrained(path: str | Path) -> Description:
    """What a published model is; no parameter is read.

    Args:
        path: as of `load_pretrained`.

    Raises:
        UserError: as `load_pretrained`, but for tensors left over or missing.
    """
    folder = find_model(path)
    with files.open_tensors(folder) as tensors:
        _, config = _read_family(folder, tensors)
    fields = files.read_json(folder / files.CONFIG)
    labels = label_names(Published(fields)) if config.head == 'classifier' else ()
    if (folder / files.GENERATION).is_file():
        fields |= files.read_json(folder / files.GENERATION)
    start_id = fields.get('decoder_start_token_id')
    return Description(config, _read_tokenizer(folder), labels, start_id)


def save_pretrained(
    folder: str | Path,
    config: TransformerConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    family: str,
    token_ids: Mapping[str, int] | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Writes a folder that `transformers` loads, in the dtype of the parameters.

    Args:
        folder: made if it is not there; an earlier model in it is replaced.
        params: of `Transformer(config)`, scanned or not.
        tokenizer: None: none is written.
        family: its model_type: 'llama', 'gpt2', ...
        token_ids: further fields of config.json, such as pad_token_id.
        labels: of a classifier, the names of its first classes.

    Raises:
        UserError: before anything is written, if the family cannot say what the config says.
    """
    table = choose(FAMILIES, family, 'family')
    fields = write_config(table, config)
    tensors = published_tensors(table, config, params)
    if tokenizer is not None:
        fields['eos_token_id'] = tokenizer.eos_id
    if labels:
        fields['id2label'] |= {str(i): name for i, name in enumerate(labels)}
        fields['label2id'] = {name: int(i) for i, name in fields['id2label'].items()}
    fields |= {'dtype': config.param_dtype} | dict(token_ids or {})
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    files.write_tensors(folder, tensors)
    files.write_json(folder / files.CONFIG, fields)
    if tokenizer is not None:
        tokenizer.save(folder)
        files.write_json(folder / 'tokenizer_config.json', _tokenizer_config(tokenizer))


def read_config(
    family: Family, fields: Mapping[str, Any], tensors: Mapping[str, Any]
) -> TransformerConfig:
    """The config of a published config.json beside tensors of these (canonical) names."""
    fields = {family.older.get(name, name): value for name, value in fields.items()}
    modules = {name.rpartition('.')[0] for name in tensors} | set(tensors)
    published = Published(fields, frozenset(modules))
    ours: dict[str, Any] = {}
    for rule in family.rules:
        ours |= rule.read(published)
    for section, cls in ('rope', RopeConfig), ('relative', RelativeConfig):
        prefix = f'{section}.'
        names = [name for name in ours if name.startswith(prefix)]
        ours[section] = cls(**{name.removeprefix(prefix): ours.pop(name) for name in names})
    return TransformerConfig(**ours)


def _read_family(folder: Path, tensors: files.Tensors) -> tuple[Family, TransformerConfig]:
    fields = files.read_json(folder / files.CONFIG)
    family = choose(FAMILIES, fields.get('model_type'), f'model_type in {folder / files.CONFIG}')
    for name in fields.get('architectures') or ():
        if name.endswith(HEADS) and name not in family.classes.values():
            raise UserError(
                f'{folder} is a {name}, whose head we do not have; {family.model_type} models here '
                f'are {", ".join(family.classes.values())}.'
            )
    return family, read_config(family, fields, file_names(family, tensors.shapes))


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    return load_tokenizer(folder) if (folder / FILE_NAME).is_file() else None


def write_config(family: Family, config: TransformerConfig) -> dict[str, Any]:
    """The config.json of a config of ours.

    Raises:
        UserError: read again, it would be another architecture; the message names the fields.
    """
    architecture = choose(family.classes, config.head, f'model.head of a {family.model_type} model')
    fields = {'model_type': family.model_type, 'architectures': [architecture]}
    for rule in family.rules:
        fields |= rule.write(config)
    tensors = {place.tensor: None for place in places(family, config).values()}
    want, got = _architecture(config), _architecture(read_config(family, fields, tensors))
    for name in want:
        if want[name] != got[name]:
            raise UserError(
                f'A {family.model_type} model cannot have model.{name} {want[name]!r} here, but '
                f'{got[name]!r}: choose another family.'
            )
    return fields


def _architecture(config: TransformerConfig) -> dict[str, Any]:
    """What a config computes: its fields with defaults resolved, without those of no effect."""
    resolved = dataclasses.replace(
        config,
        num_kv_heads=config.kv_heads,
        head_dim=config.dim_per_head,
        attention_scale=config.attention_scale or config.dim_per_head**-0.5,
        layer_pattern=tuple(
            config.pattern[i % len(config.pattern)] for i in range(config.num_layers)
        ),
        window=config.window if 'local' in config.pattern else None,
    )
    unused = set(NO_ARCHITECTURE)
    if config.position != 'learned':
        unused.add('max_length')  # a limit only
    if config.position != 'sinusoidal':
        unused.add('sinusoidal_layout')
    if config.norm != 'layernorm':
        unused.add('norm_bias')
    if config.head in ('none', 'classifier'):
        unused |= {'tie_embeddings', 'head_bias', 'logits_scale', 'logits_softcap'}
    if config.topology != 'encoder':
        unused.add('pooling')
    if config.topology == 'encoder_decoder':
        encoder_vocab_size = config.encoder_vocab_size or config.vocab_size
        resolved = dataclasses.replace(
            resolved,
            num_encoder_layers=config.encoder_layers,
            encoder_vocab_size=None if config.share_embeddings else encoder_vocab_size,
        )
    else:
        unused.add('share_embeddings')
    fields = flat(dataclasses.asdict(resolved)) | _rope(config)
    sections = {'rope', 'relative'} - {config.position}
    return {
        name: value
        for name, value in fields.items()
        if name not in unused and name.split('.')[0] not in sections
    }


def _rope(config: TransformerConfig) -> dict[str, Any]:
    """The fields of RoPE, those that its scaling does not read as None."""
    used = {
        'none': (),
        'linear': ('factor',),
        'ntk': ('factor',),
        'dynamic': ('factor', 'original_length'),
        'yarn': ('factor', 'original_length', 'beta_fast', 'beta_slow', 'attention_factor'),
        'llama3': ('factor', 'original_length', 'low_frequency_factor', 'high_frequency_factor'),
    }[config.rope.scaling]
    rope = dataclasses.asdict(config.rope)
    rope['original_length'] = config.rope.original_length or config.max_length
    always = {'base', 'local_base', 'fraction', 'layout', 'scaling'}
    return {
        f'rope.{name}': value if name in used or name in always else None
        for name, value in rope.items()
    }


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """What `transformers` needs beside tokenizer.json."""
    added = json.loads(tokenizer.to_json())['added_tokens']
    end = next((token['content'] for token in added if token['id'] == tokenizer.eos_id), None)
    return {'tokenizer_class': 'PreTrainedTokenizerFast'} | ({'eos_token': end} if end else {})
