"""What the axes of every parameter mean: one table for optimizers, sharding and summaries."""

import re
from typing import Any

import jax

# (end of the path, contracted axes, produced axes); vectors produce only.
PARAMETER_AXES = (
    (r'position/embedding/table', ('length',), ('embed',)),
    (r'(^|/)(encoder_)?embedding/table', ('vocab',), ('embed',)),
    (r'token_types/table', ('types',), ('embed',)),
    (r'position/buckets/table', ('buckets',), ('heads',)),
    (r'attention/query/kernel', ('embed',), ('heads', 'head_dim')),
    (r'attention/(key|value)/kernel', ('embed',), ('kv_heads', 'head_dim')),
    (r'attention/out/kernel', ('heads', 'head_dim'), ('embed',)),
    (r'attention/query/bias', (), ('heads', 'head_dim')),
    (r'attention/(key|value)/bias', (), ('kv_heads', 'head_dim')),
    (r'attention/(query|key)_norm/scale', (), ('head_dim',)),
    (r'feed_forward/(up|gate)/kernel', ('embed',), ('mlp',)),
    (r'feed_forward/(up|gate)/bias', (), ('mlp',)),
    (r'feed_forward/down/kernel', ('mlp',), ('embed',)),
    (r'(attention/out|feed_forward/down)/bias', (), ('embed',)),
    (r'head/norm/(scale|bias)', (), ('embed_out',)),
    (r'norm/(scale|bias)', (), ('embed',)),
    (r'head/output/kernel', ('embed',), ('vocab',)),
    (r'head/bias', (), ('vocab',)),
    (r'embedding_projection/kernel', ('embed_in',), ('embed',)),
    (r'(head/(transform|projection)|pooler)/kernel', ('embed',), ('embed_out',)),
    (r'(head/transform|pooler)/bias', (), ('embed_out',)),
    (r'classifier/kernel', ('embed',), ('classes',)),
    (r'classifier/bias', (), ('classes',)),
)


def path_name(path: tuple[Any, ...]) -> str:
    """'decoder/layer_0/...' of a key path of `jax.tree_util`."""
    return jax.tree_util.keystr(path, simple=True, separator='/')


def is_scanned(name: str) -> bool:
    """Whether the parameter of this name has a leading axis over periods of layers."""
    return '/layers/' in name


def parameter_axes(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(contracted, produced) axis names of a parameter, without the leading one of scanned layers.

    Of an adapter's `kernel_a` and `kernel_b`, whose product has the kernel's axes, too.

    Raises:
        ValueError: no row of the table matches; a new parameter needs one.
    """
    if name.endswith('/kernel_a'):
        return parameter_axes(name.removesuffix('_a'))[0], ('rank',)
    if name.endswith('/kernel_b'):
        return ('rank',), parameter_axes(name.removesuffix('_b'))[1]
    for pattern, contracted, produced in PARAMETER_AXES:
        if re.search(f'{pattern}$', name):
            return contracted, produced
    raise ValueError(f'Parameter {name} is not in PARAMETER_AXES.')


def map_parameters(function: Any, params: Any) -> Any:
    """`function(name, leaf)` of every parameter, as a tree of the same structure."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(path_name(path), leaf), params
    )
