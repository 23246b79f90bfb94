"""Where a study is kept: databases and journals, and which of its processes are alive."""

import contextlib
import fcntl
import os
import pathlib
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import optuna
from optuna.storages import BaseStorage
from optuna.storages.journal import JournalFileBackend

from transformer.errors import UserError

SQLITE = 'sqlite:///'
PATIENCE = 60  # seconds to wait while another process writes to SQLite


def open_storage(storage: str) -> BaseStorage:
    """The storage of a URL of SQLAlchemy, or of the path of a journal.

    Raises:
        UserError: it cannot be opened, or the database's driver is missing.
    """
    try:
        if '://' not in storage:
            pathlib.Path(storage).parent.mkdir(parents=True, exist_ok=True)
            return optuna.storages.JournalStorage(JournalFileBackend(storage))
        if storage.startswith(SQLITE):
            pathlib.Path(storage.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
            engine = {'connect_args': {'timeout': PATIENCE}}
            return optuna.storages.RDBStorage(storage, engine_kwargs=engine)
        return optuna.storages.RDBStorage(storage, engine_kwargs={'pool_pre_ping': True})
    except Exception as error:  # of many kinds, by what is missing
        text = ' '.join(str(error).split())[:200]
        raise UserError(
            f'--storage {storage.split("@")[-1]} cannot be opened ({type(error).__name__}: {text}).'
        ) from error


def close_storage(storage: BaseStorage) -> None:
    """Ends the connections to a database; the storage opens others where it is used again."""
    if isinstance(storage, optuna.storages.RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


def file_lock(storage: str) -> Callable[[], AbstractContextManager[None]]:
    """A context manager: one process at a time for SQLite, which claims nothing atomically."""
    if not storage.startswith(SQLITE):
        return contextlib.nullcontext
    path = pathlib.Path(f'{storage.removeprefix(SQLITE)}.lock')

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open('w') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return locked


def process_name() -> str:
    """A name of this process that no other has, nor will have."""
    return f'{_host()}:{os.getpid()}:{uuid.uuid4().hex[:8]}'


def is_gone(name: str) -> bool:
    """Whether a process of this name ran on this machine and runs no more."""
    host, process, _ = name.rsplit(':', 2)
    if host != _host():
        return False
    try:
        os.kill(int(process), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's
        pass
    return False


def _host() -> str:
    """This machine, or this container of it: where a process number means one process."""
    space = pathlib.Path('/proc/self/ns/pid')
    return socket.gethostname() + (f'/{os.readlink(space)}' if space.exists() else '')
