"""The one engine that applies a family's table of tensors, in both directions."""

import dataclasses
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import TransformerConfig
from transformer.errors import UserError
from transformer.flops import parameter_shapes
from transformer.interop.family import Family, Fused
from transformer.interop.files import Tensors
from transformer.interop.layout import Layout, layout_of
from transformer.modules.axes import map_parameters, path_name

SHOWN = 6  # names that an error lists


class Place(NamedTuple):
    """Where a parameter is published: tensor, its axes, number among the parameters in it."""

    tensor: str
    layout: Layout
    part: int


def places(family: Family, config: TransformerConfig) -> dict[str, Place]:
    """The place of every parameter of the model with unrolled layers, by name.

    Raises:
        UserError: the family has none for a parameter of ours.
    """
    targets = _targets(family, config)
    found, homeless = {}, []
    for name, shape in _shapes(dataclasses.replace(config, scan_layers=False)).items():
        layer = re.search(r'/layer_(\d+)/', name)
        pattern = re.sub(r'/layer_\d+/', '/layer_*/', name)
        module, _, leaf = pattern.rpartition('/')
        target, suffix = targets.get(pattern), ''
        if target is None:
            target, suffix = targets.get(module), '.bias' if leaf == 'bias' else '.weight'
        if target is None:
            homeless.append(name)
            continue
        published, axes, part, parts = target
        tensor = published.replace('*', layer[1]) if layer else published
        found[name] = Place(tensor + suffix, layout_of(name, shape, axes, parts), part)
    if homeless:
        raise UserError(
            f'A {family.model_type} model has no place for {_listed(homeless)} of this config.'
        )
    return found


def load_parameters(family: Family, config: TransformerConfig, tensors: Tensors) -> dict[str, Any]:
    """The parameters of `Transformer(config)`, in its param_dtype, read one after the other.

    Raises:
        UserError: a parameter without its tensor, a tensor without its parameter, another shape, or
            a tied tensor that differs from the one it is tied to.
    """
    files = file_names(family, tensors.shapes)
    where = places(family, config)
    _check_names(family, where, files)
    for place in where.values():
        shape = tensors.shapes[files[place.tensor]]
        if shape != place.layout.shape:
            raise UserError(
                f'{place.tensor} has the shape {list(shape)}, but the model of config.json has '
                f'{list(place.layout.shape)}.'
            )
    _check_aliases(family, where, files, tensors)

    def read(name):
        place = where[name]
        return place.layout.parameter(tensors[files[place.tensor]], place.part)

    def leaf(name, shape):
        if '/layers/' not in name:
            array = read(name)
        else:
            array = np.empty(shape.shape, shape.dtype)
            for period in range(len(array)):
                array[period] = read(unrolled_name(name, period, len(config.pattern)))
        # The copy runs behind our back: waiting keeps a second source from being read beside it.
        return jax.block_until_ready(jnp.asarray(array, shape.dtype))

    return map_parameters(leaf, parameter_shapes(config))


def published_tensors(
    family: Family, config: TransformerConfig, params: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """Every published tensor of the parameters with its name, made when asked for.

    The names of a model without a head lack the prefix.

    Raises:
        UserError: at once, if the parameters are not those of the config.
    """
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    expected = _shapes(config)
    if {name: tuple(leaf.shape) for name, leaf in leaves.items()} != expected:
        wrong = [n for n in expected | leaves if n not in leaves or n not in expected]
        raise UserError(
            f'The parameters are not those of the config: {_listed(wrong or expected)}.'
        )
    members: dict[str, list[tuple[int, str, Layout]]] = {}
    for name, place in places(family, config).items():
        members.setdefault(place.tensor, []).append((place.part, name, place.layout))

    def leaf(name):
        if name in leaves:
            return np.asarray(leaves[name])
        stack, layer, rest = name.split('/', 2)
        period, slot = divmod(int(layer.removeprefix('layer_')), len(config.pattern))
        return np.asarray(leaves[f'{stack}/layers/slot_{slot}/{rest}'][period])

    def generate():
        for tensor, parts in members.items():
            layout = parts[0][2]
            if config.head == 'none':
                tensor = tensor.removeprefix(family.prefix)
            yield (
                tensor,
                layout.tensor(
                    [leaf(name) for _, name, _ in sorted(parts, key=operator.itemgetter(0))]
                ),
            )

    return generate()


def file_names(family: Family, names: Mapping[str, Any]) -> dict[str, str]:
    """Published name of today, with the prefix -> the name in the file.

    Files of the first conversions call scale and bias of a norm gamma and beta.
    """
    bare = not any(name.startswith(family.prefix) for name in names)
    found = {}
    for name in names:
        today = re.sub(r'(LayerNorm|layer_norm)\.gamma$', r'\1.weight', name)
        today = re.sub(r'(LayerNorm|layer_norm)\.beta$', r'\1.bias', today)
        found[family.prefix + today if bare else today] = name
    return found


def unrolled_name(name: str, period: int, length: int) -> str:
    """The name in an unrolled stack of a parameter of scanned layers, of one of its periods."""
    return re.sub(r'/layers/slot_(\d+)/', lambda m: f'/layer_{period * length + int(m[1])}/', name)


def _targets(family, config):
    """Path of ours, '*' for the layer -> (published, axes, part, parts)."""
    tables = [family.tensors]
    for fields, table in family.variants:
        if all(getattr(config, name) == value for name, value in fields.items()):
            tables.append(table)
    targets = {}
    for table in tables:
        for published, target in table.items():
            fused = target if isinstance(target, Fused) else Fused(None, (target,))
            for part, module in enumerate(fused.modules):
                targets[module] = published, fused.axes, part, len(fused.modules)
    return targets


def _shapes(config):
    leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(config))
    return {path_name(path): tuple(leaf.shape) for path, leaf in leaves}


def _check_names(family, where, files):
    used = {place.tensor for place in where.values()}
    known = used | set(family.aliases)
    left = [name for name in files if name not in known and not re.fullmatch(family.ignored, name)]
    missing = sorted(used - files.keys())
    if missing:
        raise UserError(f'The file has no {_listed(missing)}, which its config.json asks for.')
    if left:
        raise UserError(f'The file has {_listed(left)}, for which our model has no place.')


def _check_aliases(family, where, files, tensors):
    used = {place.tensor for place in where.values()}
    for alias, name in family.aliases.items():
        if alias in files and alias not in used and name in where:
            original = tensors[files[where[name].tensor]]
            if not np.array_equal(tensors[files[alias]], original):
                raise UserError(
                    f'{alias} differs from {where[name].tensor}, to which config.json ties it.'
                )


def _listed(names):
    names = list(names)
    rest = len(names) - SHOWN
    return ', '.join(names[:SHOWN]) + (f' and {rest} more' if rest > 0 else '')
