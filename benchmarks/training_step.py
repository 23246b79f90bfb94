"""A training step of a small GPT-2 with AdamW against the same model elsewhere: tokens a second.

    python benchmarks/training_step.py --nanogpt=../nanoGPT --nanodo=../nanodo

Forward, backward, clipping by the global norm and AdamW, on one batch that is there already; the
model and the tokens are the same for all (nanodo's model has no biases, which makes it smaller).
Ours is the step that train.py runs, on all cores as one device and on each as a device of its own
(JAX_NUM_CPU_DEVICES).
"""

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

import gpt2
from gpt2 import Shape
from harness import Job, Row, installed, measure, over, row, run_benchmark, time_rows
from rates import contestants, reached

OURS, DEVICES = 'ours', 'ours, a device a core'
FLAX, NANOGPT, HUGGINGFACE, NANODO = 'flax.linen', 'nanoGPT', 'HF GPT-2', 'nanodo'
OWED = {NANOGPT: '>= 1.0', FLAX: '>= 1.3'}


def make_ours(shape: Shape, by_core: bool) -> Job:
    import jax

    from transformer.flops import count_parameters, training_flops_per_token
    from transformer.parallel import make_cores_devices

    if by_core:
        make_cores_devices()
    # Of model.remat's policies the fastest here: see benchmarks/remat.py.
    experiment = gpt2.make_ours(shape, scan=True, remat='dots_with_no_batch_dims_saveable')
    tokens, targets = gpt2.make_tokens(shape)
    batch = experiment.data.train.batch(0) | {'tokens': tokens, 'targets': targets}
    batch = experiment.parallel.split(batch)
    step, state = experiment.train_step(), experiment.initial_state()

    def run():
        nonlocal state
        state, _ = step(state, batch)
        jax.block_until_ready(state)

    model = experiment.model_config
    flops = training_flops_per_token(model, shape.length) * shape.batch * shape.length
    return Job(run, {'flops': flops, 'parameters': count_parameters(model)})


def make_torch(shape: Shape, checkout: str | None, compiled: bool) -> Job:
    import torch

    is_nanogpt = checkout is not None
    model = gpt2.make_nanogpt(shape, checkout) if is_nanogpt else gpt2.make_huggingface(shape)
    model.train()
    parameters = list(model.parameters())
    decayed = [p for p in parameters if p.dim() >= 2]
    groups = [
        {'params': decayed, 'weight_decay': gpt2.WEIGHT_DECAY},
        {'params': [p for p in parameters if p.dim() < 2], 'weight_decay': 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, gpt2.LEARNING_RATE, betas=gpt2.BETAS)
    tokens, targets = (torch.tensor(x, dtype=torch.long) for x in gpt2.make_tokens(shape))
    forward = torch.compile(model) if compiled else model

    def loss():
        if is_nanogpt:
            return forward(tokens, targets)[1]
        logits = forward(tokens).logits  # [B, T, V]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def run():
        loss().backward()
        torch.nn.utils.clip_grad_norm_(parameters, gpt2.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Job(run, {'parameters': sum(p.numel() for p in parameters)})


def make_flax(shape: Shape, checkout: str | None) -> Job:
    """flax.linen's layers, or nanodo's model, in a step of optax."""
    import jax
    import jax.numpy as jnp
    import optax

    model = gpt2.make_linen(shape) if checkout is None else gpt2.make_nanodo(shape, checkout)
    tokens, targets = map(jnp.asarray, gpt2.make_tokens(shape))
    params = jax.jit(model.init)(jax.random.key(0), tokens)
    optimizer = optax.chain(
        optax.clip_by_global_norm(gpt2.CLIP_NORM),
        optax.adamw(
            gpt2.LEARNING_RATE,
            *gpt2.BETAS,
            weight_decay=gpt2.WEIGHT_DECAY,
            mask=lambda tree: jax.tree.map(lambda p: p.ndim >= 2, tree),
        ),
    )

    def loss(params, tokens, targets):
        logits = model.apply(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def update(params, opt_state, tokens, targets):
        value, grads = jax.value_and_grad(loss)(params, tokens, targets)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    step = jax.jit(update, donate_argnums=(0, 1))
    opt_state = jax.jit(optimizer.init)(params)
    count = gpt2.count(params)

    def run():
        nonlocal params, opt_state
        params, opt_state, value = step(params, opt_state, tokens, targets)
        value.block_until_ready()

    return Job(run, {'parameters': count})


def peers(args: argparse.Namespace, shape: Shape) -> dict[str, tuple[Callable[..., Job], Any]]:
    """Those that are there."""
    found = {FLAX: (make_flax, shape, None)}
    if args.nanogpt and installed('torch'):
        found[NANOGPT] = (make_torch, shape, args.nanogpt, args.compile)
    if installed('torch', 'transformers'):
        found[HUGGINGFACE] = (make_torch, shape, None, args.compile)
    if args.nanodo:
        found[NANODO] = (make_flax, shape, args.nanodo)
    for name, path in ('nanogpt', args.nanogpt), ('nanodo', args.nanodo):
        if not path:
            print(f'--{name}=PATH of a checkout is not given: its row is left out')
    return found


def rows(args: argparse.Namespace) -> Iterator[Row]:
    shape = gpt2.TINY if args.tiny else Shape()
    jobs = {OURS: (make_ours, shape, False)} | peers(args, shape)
    cores = len(os.sched_getaffinity(0))
    if cores > 1 and shape.batch % cores == 0:
        jobs[DEVICES] = make_ours, shape, True
    found = measure(jobs | contestants('matmul', tiny=args.tiny), args.rounds)
    matmul, ours = found.pop('matmul'), found[OURS]
    for name, one in found.items():
        if name != NANODO and one.facts['parameters'] != ours.facts['parameters']:
            raise SystemExit(f'error: {name} has another number of parameters: {one.facts}')
    work = f'{shape.layers} layers, {shape.width} wide'
    yield from time_rows(work, found, 'tokens/s', shape.batch * shape.length)
    own = {name: found.pop(name) for name in (OURS, DEVICES) if name in found}
    for name, one in own.items():
        for peer, other in found.items():
            yield row(work, f'tokens/s, {name} / {peer}', over(other, one), 'x', OWED.get(peer, ''))
        share = reached(one, matmul, one.facts['flops'])
        yield row(work, f'{name}, of the matmul rate', share, 'of the best', '>= 0.8')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--nanogpt', help='path of a checkout of github.com/karpathy/nanoGPT')
    parser.add_argument('--nanodo', help='of github.com/google-deepmind/nanodo')
    parser.add_argument('--compile', action='store_true', help='torch.compile for its models')


if __name__ == '__main__':
    run_benchmark(__file__, 'training step of a small GPT-2, AdamW, float32', rows, add_options)
