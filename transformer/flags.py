"""Command lines: a config file, `--config.FIELD=VALUE` overrides, and errors of one line.

Nothing here imports jax, so that `--help` answers at once.
"""

import argparse
import copy
import errno
import importlib.util
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FieldReference

from transformer.errors import UserError, nearest
from transformer.ranges import flat

ROOT = Path(__file__).resolve().parents[1]
EPILOG = (
    '--config.FIELD=VALUE sets any field of the config, for example --config.model.num_layers=4 '
    'or --config.data.path=a.txt,b.txt; none unsets an optional field.'
)


def run_main(main: Callable[[Sequence[str]], Any]) -> None:
    """Runs `main(argv)` on the arguments of the process.

    A UserError becomes one line on stderr and exit code 2, and so do files and memory that the
    system refuses; an interrupt and a closed pipe end with the shell's codes for them; any other
    exception is a defect and keeps its traceback.
    """
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of stdout, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if not (message := _refusal(error)):
            raise
        print('error:', ' '.join(message.split()), file=sys.stderr)
        sys.exit(2)


def _refusal(error: Exception) -> str:
    """What to say about an error that is no defect of the program; '' for one that is."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f'{error.filename}: {error.strerror}.'
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f'{error.strerror}: make room and run again.'
    # JAX says it by this word, in an exception that is not worth importing JAX for.
    if isinstance(error, MemoryError) or 'RESOURCE_EXHAUSTED' in str(error):
        return (
            'There is not enough memory: lower data.batch_size or data.length, or raise '
            f'train.accumulation or model.remat ({str(error)[:200]}).'
        )
    return ''


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """Splits a command line into the parser's own arguments and the overrides of the config.

    Returns:
        The namespace, and the pairs (field, text) of every `--config.FIELD=TEXT` or
        `--config.FIELD TEXT` in order, ready for `override`.

    Raises:
        UserError: an unknown flag, a stray word, a missing value, or what the parser refuses.
    """
    flags = [flag for action in parser._actions for flag in action.option_strings]

    def refuse(reason: str):
        long = ', '.join(flag for flag in flags if flag.startswith('--'))
        raise UserError(f'{reason} Flags: {long}, --config.FIELD=VALUE.')

    parser.error = lambda message: refuse(f'{message}.')  # instead of a usage text and an exit
    parser.allow_abbrev = False
    parser.epilog = parser.epilog or EPILOG
    words, overrides = _split_overrides(argv)
    for flag in (word.split('=')[0] for word in words if word.startswith('--')):
        if flag not in flags:
            # A dot means a field of the config, written without `config.`.
            field = f' Did you mean --config.{flag[2:]}?' if '.' in flag else ''
            refuse(f'There is no flag {flag}.{field or nearest(flag, flags)}')
    args, stray = parser.parse_known_args(words)
    if stray:
        refuse(f'Stray argument {stray[0]!r}: values are given as --flag=value.')
    return args, overrides


def _split_overrides(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The words that are no overrides, and the (field, text) of those that are."""
    rest, overrides = [], []
    words = iter(argv)
    for word in words:
        if not word.startswith('--config.'):
            rest.append(word)
            continue
        flag, equals, text = word.partition('=')
        if not equals:
            text = next(words, '--')
            if text.startswith('--'):
                raise UserError(f'{flag} has no value: write {flag}=VALUE.')
        overrides.append((flag.removeprefix('--config.'), text))
    return rest, overrides


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
        kind, expected = _locate(config, name)[2], _locate(template, name)[2]
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


def override(config: ConfigDict, name: str, text: str) -> None:
    """Sets the field with the dotted `name` to what `text` means for the field's type.

    An int may be written 1e3; a bool is true, false, 1 or 0; a tuple is `a,b` or `("a", "b")`,
    its elements of the type of the present ones (a float among ints is welcome) or, where there
    are none, numbers if they look like numbers; `()` and the empty text are the empty tuple.
    `none` unsets an optional field, which is one that was made as a placeholder: so it stays a
    word of its own for all other strings, as in model.remat=none.

    Raises:
        UserError: there is no such field, it is a section, or the text is not of its type.
    """
    names = field_names(config)
    inside = [field for field in names if field.startswith(f'{name}.')]
    if inside:
        raise UserError(f'{name} is a section of the config: set one field of it, as {inside[0]}.')
    if name not in names:
        namesakes = [field for field in names if field.split('.')[-1] == name.split('.')[-1]]
        hint = f' Did you mean {namesakes[0]!r}?' if namesakes else nearest(name, names)
        raise UserError(f'{name} is not a field of the config.{hint}')
    section, last, kind, optional = _locate(config, name)
    if kind not in TYPES:
        raise UserError(f'{name} is a {kind.__name__}: set it in the config file.')
    try:
        if optional and text.lower() == 'none':
            section[last] = None
        else:
            section[last] = _tuple(text, section[last]) if kind is tuple else TYPES[kind][0](text)
    except ValueError:
        expected = TYPES[kind][1] + (' or none' if optional else '')
        raise UserError(f'{name} must be {expected}; not {text!r}.') from None


def _locate(config: ConfigDict, name: str) -> tuple[ConfigDict, str, type, bool]:
    """The section that holds a field, its last name, its type, and whether it may be None."""
    *sections, last = name.split('.')
    for section in sections:
        config = config[section]
    field = dict(config.items(preserve_field_references=True))[last]
    return config, last, config.get_type(last), isinstance(field, FieldReference)


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        if not (number := float(text)).is_integer():
            raise
        return int(number)


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _bool(text: str) -> bool:
    if text.lower() not in ('true', 'false', '1', '0'):
        raise ValueError(text)
    return text.lower() in ('true', '1')


def _tuple(text: str, present: tuple | None) -> tuple:
    text = text.strip()
    if text[:1] + text[-1:] in ('()', '[]'):
        text = text[1:-1]
    kinds = {type(value) for value in present or ()} or {int, str}
    kinds |= {float} if int in kinds else set()
    words = re.findall(r"""\s*("[^"]*"|'[^']*'|[^,]+)""", text)
    return tuple(_element(word.strip(), kinds) for word in words if word.strip())


def _element(word: str, kinds: set[type]) -> Any:
    """The word as the first of bool, int, float and str that is in `kinds` and can read it."""
    if word[0] in '"\'' and str in kinds:
        return word.strip(word[0])
    for kind in (kind for kind in TYPES if kind in kinds):
        try:
            return TYPES[kind][0](word)
        except ValueError:
            continue
    raise ValueError(word)


TYPES = {
    bool: (_bool, 'a bool (true or false)'),
    int: (_int, 'an int'),
    float: (_float, 'a float'),
    str: (str, 'a str'),
    tuple: (_tuple, 'a tuple such as a,b of elements like the present ones'),
}


def field_names(config: ConfigDict) -> list[str]:
    """The dotted names of all fields, sorted by section: 'seed', 'model.rope.base', ..."""
    return list(flat(config.to_dict()))


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
        section, last, kind, optional = _locate(config, name)
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
