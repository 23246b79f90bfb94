"""Command lines: flags, `--config.FIELD=VALUE` overrides, and errors of one line.

Nothing here imports jax, so that `--help` answers at once.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from transformer.errors import UserError, nearest

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
