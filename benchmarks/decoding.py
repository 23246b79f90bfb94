"""Greedy decoding and beam search with a cache against `generate` of Hugging Face, same weights.

    python benchmarks/decoding.py --rounds=5

Every row of a batch has a prompt of 32 tokens and gets 224 more, whatever they are. Ours are
`generate` and `beam_search` with the parameters passed through `unrolled` once, as generate.py does
it, on all cores as one device and, of several prompts, on each as a device of its own
(JAX_NUM_CPU_DEVICES). A roofline is what must be read and multiplied at the measured rates: for
every step the weights once, and for every row its cache so far.
"""

import argparse
import tempfile
from collections.abc import Iterator

import gpt2
import numpy as np
from gpt2 import Shape
from harness import Job, Measurement, Row, installed, measure, over, row, run_benchmark, time_rows
from rates import contestants, rate

OURS, DEVICES, HUGGINGFACE = 'ours', 'ours, a device a core', 'HF generate'
# Name, prompts, beams, and how many times the peer's rate is owed.
SETTINGS = ('batch 1', 1, 1, '>= 4.0'), ('batch 8', 8, 1, '>= 4.0'), ('4 x beam 4', 4, 4, '>= 6.0')


def make_prompts(shape: Shape, count: int) -> list[list[int]]:
    size = count, prompt_length(shape)
    return np.random.default_rng(1).integers(0, shape.vocab, size).tolist()


def prompt_length(shape: Shape) -> int:
    return shape.length // 8


def make_by_core(shape: Shape, folder: str, count: int, beams: int) -> Job:
    from transformer.parallel import make_cores_devices

    make_cores_devices()
    return make_ours(shape, folder, count, beams)


def make_ours(shape: Shape, folder: str, count: int, beams: int) -> Job:
    from transformer.decoding import beam_search, generate, unrolled
    from transformer.interop import load_pretrained
    from transformer.modules import Transformer

    config, params, *_ = load_pretrained(folder)
    model, params = unrolled(Transformer(config), params)
    prompts = make_prompts(shape, count)
    new = shape.length - prompt_length(shape)

    def decode():
        if beams == 1:
            return generate(model, params, prompts, max_new_tokens=new)
        options = {'beam_size': beams, 'max_new_tokens': new, 'eos_id': None}
        found = beam_search(model, params, prompts, **options)
        return [hypotheses[0].tokens for hypotheses in found]

    return Job(decode, {'tokens': decode(), 'parameters': gpt2.count(params)})


def make_huggingface(shape: Shape, folder: str, count: int, beams: int) -> Job:
    import torch
    from transformers import GPT2LMHeadModel, logging

    logging.disable_progress_bar()
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    prompts = torch.tensor(make_prompts(shape, count))
    new = shape.length - prompt_length(shape)
    options = {'max_new_tokens': new, 'num_beams': beams, 'do_sample': False, 'use_cache': True}

    def decode():
        mask = torch.ones_like(prompts)
        found = model.generate(
            prompts, attention_mask=mask, eos_token_id=None, pad_token_id=0, **options
        )
        return found[:, prompts.shape[1] :].tolist()

    tokens = decode()
    if any(len(row) != new for row in tokens):
        raise ValueError(f'{HUGGINGFACE} made rows of other lengths than {new}.')
    return Job(decode, {'tokens': tokens})


def least_seconds(shape: Shape, rows: int, parameters: int, read: float, matmul: float) -> float:
    """The roofline of one run: its steps by the slower of reading and multiplying."""
    weights = 4.0 * (parameters - shape.length * shape.width)  # positions are looked up
    position = np.arange(prompt_length(shape), shape.length)
    cache = 4.0 * 2 * shape.layers * shape.width * position * rows  # keys and values
    flops = 2 * (weights + cache) / 4
    flops += 2 * weights / 4 * (rows - 1)  # the weights are read once for all rows
    return float(np.maximum((weights + cache) / read, flops / matmul).sum())


def agreement(a: Measurement, b: Measurement) -> float:
    """The share of the new tokens that are the same."""
    return float(np.mean(np.equal(a.facts['tokens'], b.facts['tokens'])))


def rows(args: argparse.Namespace) -> Iterator[Row]:
    shape = gpt2.TINY if args.tiny else Shape()
    settings = SETTINGS[::2] if args.tiny else SETTINGS
    makers = {OURS: make_ours, DEVICES: make_by_core}
    if installed('torch', 'transformers'):
        makers[HUGGINGFACE] = make_huggingface
    with tempfile.TemporaryDirectory() as folder:
        gpt2.save_model(shape, folder)
        jobs = {
            (name, peer): (make, shape, folder, prompts, beams)
            for name, prompts, beams, _ in settings
            for peer, make in makers.items()
            if peer != DEVICES or prompts > 1
        }
        found = measure(jobs | contestants('matmul', 'read', tiny=args.tiny), args.rounds)
    rates = rate(found['read']), rate(found['matmul'])
    for name, prompts, beams, owed in settings:
        own = {peer: found[name, peer] for peer in makers if (name, peer) in found}
        yield from setting_rows(shape, own, rates, name, prompts, beams, owed)


def setting_rows(
    shape: Shape,
    found: dict[str, Measurement],
    rates: tuple[float, float],
    name: str,
    prompts: int,
    beams: int,
    owed: str,
) -> Iterator[Row]:
    """Of one setting.

    Args:
        found: by contestant.
        rates: bytes read and FLOPs in a second.
        name, prompts, beams, owed: as in SETTINGS.
    """
    new = shape.length - prompt_length(shape)
    yield from time_rows(name, found, 'tokens/s', prompts * new)
    least = least_seconds(shape, prompts * beams, found[OURS].facts['parameters'], *rates)
    share_owed = '>= 0.6' if prompts * beams == 1 else ''
    for who in (OURS, DEVICES):
        if who not in found:
            continue
        ours = found[who]
        if HUGGINGFACE in found:
            peer = found[HUGGINGFACE]
            yield row(name, f'tokens/s, {who} / {HUGGINGFACE}', over(peer, ours), 'x', owed)
            yield row(name, f'{who}, tokens as {HUGGINGFACE}', agreement(ours, peer), 'of all')
        shares = [least / seconds for seconds in ours.seconds]
        yield row(name, f'{who}, of the roofline', shares, 'of the best', share_owed)


if __name__ == '__main__':
    run_benchmark(__file__, 'decoding with a cache, a small GPT-2, float32', rows)
