"""Outputs of `transformers` for the tiny models; needs torch."""

import json
import pathlib

import numpy as np
import torch
import transformers
from safetensors import safe_open
from tiny_models import Variant

torch.set_num_threads(1)  # tiny products, beside other tests
BY_INDEX = ('T5', 'Bart', 'Marian')  # whose positions count padding too


def positions_by_index(variant: Variant) -> bool:
    return variant.cls.startswith(BY_INDEX)


def describe(variant: Variant, folder: pathlib.Path) -> dict:
    """The config.json that `transformers` writes for a variant, and the shapes of its tensors."""
    cls = getattr(transformers, variant.cls)
    config = cls.config_class(**variant.fields)
    cls(config).save_pretrained(folder)
    fields = json.loads((folder / 'config.json').read_text())
    with safe_open(folder / 'model.safetensors', 'numpy') as file:
        tensors = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    extra = {name: list(shape) for name, shape in variant.extra.items()}
    return {'config': fields, 'tensors': dict(sorted((tensors | extra).items()))}


def load(folder: pathlib.Path, variant: Variant) -> torch.nn.Module:
    """The model of a folder; every tensor that the class wants is in the file."""
    cls = getattr(transformers, variant.cls)
    model, info = cls.from_pretrained(
        folder, attn_implementation='eager', dtype=torch.float32, output_loading_info=True
    )
    assert not info['missing_keys'], info
    assert not info['mismatched_keys'], info
    return model.eval()


def run(folder: pathlib.Path, variant: Variant, batch: dict[str, np.ndarray]) -> dict:
    """Logits, and the layers + 1 hidden states [B, T, D] of the stack that makes them."""
    if 'dynamic' in str(variant.fields):
        return _row_by_row(folder, variant, batch)
    return _run(load(folder, variant), variant, batch)


def _run(model, variant, batch):
    tensors = {name: torch.tensor(value).long() for name, value in batch.items()}
    if 'encoder_tokens' in tensors:
        inputs = {
            'input_ids': tensors['encoder_tokens'],
            'attention_mask': tensors['encoder_segment_ids'],
            'decoder_input_ids': tensors['tokens'],
            'decoder_attention_mask': tensors['segment_ids'],
        }
    else:
        inputs = {'input_ids': tensors['tokens'], 'attention_mask': tensors['segment_ids']}
        positions = tensors['positions']
        if variant.cls.startswith('Roberta'):
            positions = positions + model.config.pad_token_id + 1
        if not variant.cls.startswith(('OPT', 'Bloom')):  # which count by the mask
            inputs['position_ids'] = positions
        if 'token_types' in tensors:
            inputs['token_type_ids'] = tensors['token_types']
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
    states = out.get('decoder_hidden_states', out.get('hidden_states'))
    found = {'hidden': [state.numpy() for state in states]}
    for name in 'logits', 'prediction_logits', 'pooler_output':
        if name in out:
            found['logits' if 'logits' in name else 'pooled'] = out[name].numpy()
    return found


def _row_by_row(folder, variant, batch):
    """Each row alone, in a fresh model: dynamic NTK depends on the batch and on earlier calls."""
    outputs = []
    for row, valid in enumerate(batch['segment_ids'] > 0):
        alone = {name: value[row : row + 1, valid] for name, value in batch.items()}
        outputs.append(_run(load(folder, variant), variant, alone) | {'valid': valid})
    length = len(outputs[0]['valid'])
    logits = np.zeros((2, length, outputs[0]['logits'].shape[-1]), np.float32)
    hidden = [np.zeros((2, length, 48), np.float32) for _ in outputs[0]['hidden']]
    for row, out in enumerate(outputs):
        logits[row, out['valid']] = out['logits'][0]
        for state, alone in zip(hidden, out['hidden'], strict=True):
            state[row, out['valid']] = alone[0]
    return {'logits': logits, 'hidden': hidden}


def generate(
    model: torch.nn.Module,
    prompt: list[int],
    source: list[int] | None,
    count: int,
    beams: int = 1,
    eos_id: int | None = None,
) -> list[int]:
    """The `count` likeliest new tokens after a prompt, or fewer where one is `eos_id`."""
    config = model.generation_config
    config.forced_eos_token_id = config.bad_words_ids = None
    config.eos_token_id, config.pad_token_id = eos_id, 0
    inputs = {'input_ids': torch.tensor([prompt])}
    if source is not None:
        inputs = {'input_ids': torch.tensor([source]), 'decoder_input_ids': torch.tensor([prompt])}
    out = model.generate(
        **inputs,
        attention_mask=torch.ones_like(inputs['input_ids']),
        generation_config=config,
        max_new_tokens=count,
        do_sample=False,
        num_beams=beams,
        length_penalty=0.0,
        use_cache=model.config.model_type != 't5',  # made for the encoder's number of layers
    )
    return out[0, len(prompt) :].tolist()
