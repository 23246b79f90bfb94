"""Folders that are built once, whole or not at all, and shared by concurrent runs."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from transformer.errors import UserError

MANIFEST = 'manifest.json'  # name and size of every other file; written last


def cache_folder(cache_dir: str | None) -> Path:
    """`cache_dir`, or the user's cache folder for this package."""
    if cache_dir is not None:
        return Path(os.path.expanduser(cache_dir))
    user = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(user) / 'transformer'


def digest(*parts: object) -> str:
    """A short name for what `parts` print as."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build` unless an earlier run has made it.

    `build` writes into a new folder beside it, which is renamed when it is complete; so an
    interrupted run leaves nothing that looks finished, and of two concurrent runs the first wins.

    Raises:
        UserError: the folder cannot be written.
    """
    if _is_whole(folder):
        return folder
    scratch = folder.with_name(f'.{folder.name}-{secrets.token_hex(4)}')
    try:
        scratch.mkdir(parents=True)
        build(scratch)
        sizes = {path.name: path.stat().st_size for path in scratch.iterdir()}
        (scratch / MANIFEST).write_text(json.dumps(sizes))
        _publish(scratch, folder)
    except OSError as error:
        raise UserError(
            f'The cache {folder.parent} cannot be written ({error.strerror}): set data.cache_dir '
            'to a folder with space.'
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _publish(scratch: Path, folder: Path) -> None:
    if folder.exists() and not _is_whole(folder):  # damaged since
        shutil.rmtree(folder)
    try:
        scratch.rename(folder)
    except OSError:
        if not _is_whole(folder):  # else another run was faster
            raise


def _is_whole(folder: Path) -> bool:
    """Whether every file of the manifest is there in full."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
