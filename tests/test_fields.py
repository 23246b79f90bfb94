"""Every field of an experiment is read by someone: none is an option without effect.

A field `section.name` counts as read where the code says `section.name`, with whatever before it
(`config.data.path`, `self._config.data.path`), or `s.name` after `s = config.section`. A field of
the model may also be read as `config.name` or through a property of TransformerConfig, and one
of the optimizer as `hparams['name']`. Names in strings and checks of a value in
TransformerConfig itself do not count.
"""

import ast
import inspect
import pathlib
import textwrap

import pytest

from configs import base
from transformer.config import TransformerConfig
from transformer.config_fields import field_names

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECTIONS = {part for name in field_names(base.get_config()) for part in name.split('.')[:-1]}
MODEL_NAMES = {'config', 'model', 'model_config'}  # of a variable that holds a TransformerConfig
OTHER_OWNERS = {'model': MODEL_NAMES, 'optimizer': {'hparams'}}


def reads(source: str) -> set[tuple[str, str]]:
    """(owner, name) of every `owner.name` and `owner['name']` that is read."""
    tree = ast.parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = set()
    for scope in [*tree.body, *(node for cls in classes for node in cls.body)]:
        if isinstance(scope, ast.ClassDef):
            continue
        aliases = dict(assigned_sections(scope))
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add((owner(node.value, aliases), node.attr))
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                found.add((owner(node.value, aliases), node.slice.value))
    return found


def owner(node: ast.expr, aliases: dict[str, str]) -> str:
    """The last name of an expression: 'data' for `self._config.data`."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    return node.attr.lstrip('_') if isinstance(node, ast.Attribute) else ''


def assigned_sections(scope: ast.stmt):
    """(variable, section) of every `variable = ....section`."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                for variable, value in pairs:
                    if isinstance(variable, ast.Name) and owner(value, {}) in SECTIONS:
                        yield variable.id, owner(value, {})


def read_through_properties(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What the properties of TransformerConfig read, of those that are themselves read."""
    more = set(found)
    for name, value in inspect.getmembers(TransformerConfig):
        if isinstance(value, property) and any((var, name) in found for var in MODEL_NAMES):
            inside = reads(textwrap.dedent(inspect.getsource(value.fget)))
            more |= {('config' if var == 'self' else var, attr) for var, attr in inside}
    return more if more == found else read_through_properties(more)


def unread(names: list[str], sources: list[str]) -> list[str]:
    found = read_through_properties(set().union(*map(reads, sources)))
    missing = []
    for name in names:
        *sections, last = name.split('.')
        section = sections[-1] if sections else 'config'
        owners = {section} | OTHER_OWNERS.get(section, set())
        if not any((owner, last) in found for owner in owners):
            missing.append(name)
    return missing


def project_sources() -> list[str]:
    """The code that acts on a config: none that defines, varies or only describes it."""
    files = {*ROOT.glob('*.py'), *(ROOT / 'transformer').rglob('*.py')}
    files -= {
        ROOT / name for name in ('transformer/config.py', 'transformer/summary.py', 'sweep.py')
    }
    return [path.read_text(encoding='utf-8') for path in files]


def test_every_field_is_read():
    assert unread(field_names(base.get_config()), project_sources()) == []


def test_a_field_that_nobody_reads_is_found():
    names = ['nobody', 'data.nobody', 'model.nobody', 'model.rope.nobody', 'train.nobody']
    assert unread(names, project_sources()) == names


@pytest.mark.parametrize(
    ('source', 'name'),
    [
        ('config.data.path', 'data.path'),
        ('def f(): return self._config.data.path', 'data.path'),
        ('class A:\n def f(self):\n  d = self.config.data\n  return d.path', 'data.path'),
        ('def f():\n config, n = run.config.train, 3\n return config.steps', 'train.steps'),
        ('x = config.seed', 'seed'),
        ("x = hparams['b1']", 'optimizer.b1'),
        ('x = self.config.norm', 'model.norm'),
        ('x = config.rope.base', 'model.rope.base'),
        ('x = config.dim_per_head', 'model.head_dim'),
        ('x = config.rotary_dim', 'model.rope.fraction'),
        ('x = config.rotary_dim', 'model.num_heads'),
    ],
)
def test_a_read_is_seen(source, name):
    assert unread([name], [source]) == []


@pytest.mark.parametrize(
    ('source', 'name'),
    [
        ('config.data.path = 3', 'data.path'),
        ("'data.path config.data.path'  # config.data.path", 'data.path'),
        ('x = os.path', 'data.path'),
        ('x = array.dtype', 'model.dtype'),
        ('x = config.data.seed', 'seed'),
        ('x = config.seed', 'data.seed'),
        ('def f():\n config = run.config.train\n return config.seed', 'seed'),
        ("x = hparams['seed']", 'data.seed'),
        ('x = config.kv_heads', 'model.head_dim'),
    ],
)
def test_what_is_no_read_of_the_field_is_not_taken_for_one(source, name):
    assert unread([name], [source]) == [name]
