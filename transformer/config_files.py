"""Configs as files: the Python that a user writes, and the JSON that a run keeps."""

import copy
import importlib.util
import json
import os
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer.config_fields import field_names, locate
from transformer.errors import UserError, nearest
from transformer.ranges import flat

ROOT = Path(__file__).resolve().parents[1]


def load_config(path: str | os.PathLike) -> ConfigDict:
    """The config that `get_config()` of a Python file returns, locked.

    The file may import `configs`, from wherever the script is started. 'FILE.py:WORD' calls
    `get_config('WORD')`.

    Raises:
        UserError: there is no such file, it fails, or it returns no ConfigDict.
    """
    name, *words = str(path).rsplit('.py:', 1)
    path = Path(f'{name}.py' if words else path)
    if path.suffix != '.py' or not path.is_file():
        folders = ROOT / 'configs', path.parent
        files = {file.stem: file for folder in folders for file in folder.glob('*.py')}
        close = get_close_matches(path.stem, files, n=1)
        hint = f' Did you mean {os.path.relpath(files[close[0]])}?' if close else ''
        raise UserError(f'There is no Python file {path}.{hint}')
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, 'get_config'):
            raise UserError('it has no function get_config().')
        config = module.get_config(*words)
        if type(config) is not ConfigDict:
            raise UserError(f'get_config() returns a {type(config).__name__}, not a ConfigDict.')
        _check_fields(config)
    except (Exception, SystemExit) as error:
        raise UserError(f'{path}: {_explain(error, path)}') from error
    return config.lock()


def _check_fields(config: ConfigDict) -> None:
    """Raises UserError unless the config has the fields of configs/base.py, of the same types."""
    from configs import base

    template = base.get_config()
    names, valid = field_names(config), field_names(template)
    for name in names:
        if name not in valid:
            raise UserError(f'{name} is not a field of configs/base.py.{nearest(name, valid)}')
    for name in valid:
        if name not in names:
            raise UserError(f'{name} is missing: start from base.get_config().')
        kind, expected = locate(config, name)[2], locate(template, name)[2]
        if kind is type(None):
            raise UserError(f'{name} is None, and only a placeholder may be.')
        if kind is not expected:
            raise UserError(f'{name} is a {kind.__name__}, not a {expected.__name__}.')


def _explain(error: BaseException, path: Path) -> str:
    """What went wrong and in which line of the config file at `path`."""
    text = ' '.join(str(error).split())
    if len(text) > 200:  # ml_collections lists every field before its suggestion
        text = f'{text[:100]} ... {text[-100:]}'
    if isinstance(error, UserError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    where = f' in line {lines[-1]}' if lines else ''  # a SyntaxError's text has its line
    return f'{type(error).__name__}{where}: {text}'


def config_to_json(config: ConfigDict) -> str:
    """The values of all fields as JSON: tuples become lists, unset fields null."""
    return json.dumps(config.to_dict(), indent=2)


def config_from_json(text: str, template: ConfigDict) -> ConfigDict:
    """The locked config that `config_to_json` wrote, with the types of the template's fields.

    Raises:
        UserError: the text is no JSON object, a field is unknown or missing, or a value is not
            of its field's type.
    """
    try:
        values = flat(json.loads(text))
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f'The stored config is not a JSON object: {error}.') from None
    names = field_names(template)
    wrong = [f'unknown field {name}' for name in values if name not in names]
    wrong += [f'missing field {name}' for name in names if name not in values]
    if wrong:
        raise UserError(f'The stored config is of another version: {", ".join(wrong)}.')
    config = copy.deepcopy(template)
    for name, value in values.items():
        section, last, kind, optional = locate(config, name)
        try:
            if value is None and not optional:
                raise TypeError
            section[last] = _tuples(value) if kind is tuple else value
        except TypeError:
            message = f'The stored config has {name} = {value!r}; it must be a {kind.__name__}.'
            raise UserError(message) from None
    return config.lock()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def config_differences(a: ConfigDict, b: ConfigDict) -> list[str]:
    """The dotted names of the fields that differ in value, or that only one of the two has."""
    a, b = flat(a.to_dict()), flat(b.to_dict())
    return [name for name in a | b if name not in a or name not in b or a[name] != b[name]]
