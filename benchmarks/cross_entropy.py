"""The loss of a large vocabulary and its gradients, in chunks of tokens against all logits at once.

    python benchmarks/cross_entropy.py --chunk=256

From features [N, D] and a head [V, D] to the sum of the losses and the gradients of both. Memory
is what XLA says of the compiled program's temporaries: arguments and gradients are not among them.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from harness import Job, Row, measure, over, row, run_benchmark, time_rows
from rates import contestants, reached

CHUNKED, FULL, OPTAX = 'ours, chunked', 'full logits', 'full logits, optax'
TINY = {'tokens': 64, 'vocab': 512, 'width': 16, 'chunk': 8}
PRODUCTS = 3  # logits, and the gradients of the features and of the head


def make_loss(name: str, tokens: int, vocab: int, width: int, chunk: int) -> Job:
    """FULL is the project's own loss without chunks, OPTAX that of optax."""
    import jax
    import jax.numpy as jnp
    import optax

    from transformer.functional import cross_entropy, sum_over_chunks

    random = np.random.default_rng(0)
    features = jnp.asarray(random.normal(size=(tokens, width)), jnp.float32)
    table = jnp.asarray(0.02 * random.normal(size=(vocab, width)), jnp.float32)
    targets = jnp.asarray(random.integers(0, vocab, tokens), jnp.int32)

    def sums(logits, params, targets, numbers):
        return cross_entropy(logits, targets).sum(), None

    def loss(table, features):
        if name == CHUNKED:
            return sum_over_chunks(sums, chunk, features, table, None, targets, None)[0]
        logits = features @ table.T  # [N, V]
        if name == FULL:
            return sums(logits, None, targets, None)[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).sum()

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(table, features).compile()
    temporaries = step.memory_analysis().temp_size_in_bytes

    def run():
        jax.block_until_ready(step(table, features))

    return Job(run, {'temporaries': temporaries, 'loss': float(step(table, features)[0])})


def rows(args: argparse.Namespace) -> Iterator[Row]:
    sizes = args.tokens, args.vocab, args.width, args.chunk
    jobs = {name: (make_loss, name, *sizes) for name in (CHUNKED, FULL, OPTAX)}
    found = measure(jobs | contestants('matmul', tiny=args.tiny), args.rounds)
    matmul, chunked = found.pop('matmul'), found[CHUNKED]
    np.testing.assert_allclose([one.facts['loss'] for one in found.values()], chunked.facts['loss'])
    work = f'N={args.tokens} V={args.vocab} D={args.width}'
    yield from time_rows(work, found, 's')
    for name, one in found.items():
        yield row(work, name, one.facts['temporaries'] / 2**20, 'MiB of temporaries')
    for name in FULL, OPTAX:
        memory = chunked.facts['temporaries'] / found[name].facts['temporaries']
        yield row(work, f'memory, ours / {name}', memory, 'x', '<= 0.125')
        yield row(work, f'time, ours / {name}', over(chunked, found[name]), 'x', '<= 1.1')
    flops = 2.0 * PRODUCTS * args.tokens * args.vocab * args.width
    yield row(work, 'ours, of the matmul rate', reached(chunked, matmul, flops), 'of the best')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--tokens', type=int, default=4096)
    parser.add_argument('--vocab', type=int, default=32768)
    parser.add_argument('--width', type=int, default=512)
    parser.add_argument('--chunk', type=int, default=256, help='tokens; loss.chunk of a config')


if __name__ == '__main__':
    run_benchmark(__file__, 'cross entropy of a large vocabulary, float32', rows, add_options, TINY)
