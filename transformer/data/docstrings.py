"""Docstrings of the standard library, and the top-level package or module that each is from.

The text is the docstring with its indentation removed and nothing else: a package's own name in it
is evidence like any other word. Texts that several packages have, short ones, and packages with few
are left out.
"""

import ast
import collections
import functools
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from transformer.data.sources import python_files

FORMAT = 1  # of what `pairs` makes
LEAST_TEXTS = 50  # of a package: five of them validate
LEAST_CHARACTERS = 20  # 'See above.' is of no package

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def version() -> list:
    """What decides the pairs."""
    return [FORMAT, sys.version]


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """(docstring, package) in the order of the files; every docstring once."""
    packages = collections.defaultdict(set)
    for text, package in _docstrings(Path(sysconfig.get_paths()['stdlib'])):
        if len(text) >= LEAST_CHARACTERS:
            packages[text].add(package)
    found = [(text, *names) for text, names in packages.items() if len(names) == 1]
    counts = collections.Counter(package for _, package in found)
    return tuple(pair for pair in found if counts[pair[1]] >= LEAST_TEXTS)


def _docstrings(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(python_files(root)):
        package = path.split('/')[0].removesuffix('.py')
        with warnings.catch_warnings():  # of old spellings in the library itself
            warnings.simplefilter('ignore')
            tree = ast.parse((root / path).read_bytes())
        for node in _documented(tree):
            if text := ast.get_docstring(node):
                yield text, package


def _documented(node: ast.AST) -> Iterator[ast.AST]:
    """The modules, classes and functions in `node`, outer ones first."""
    if isinstance(node, DOCUMENTED):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # most nodes are expressions, and none is in one
            yield from _documented(child)
