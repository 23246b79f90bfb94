"""What tests share."""

import os
import pathlib
import subprocess
import sys

import pytest

from transformer.errors import UserError

# Small shapes spend their time in the compiler: let it optimise less, in this process alone.
os.environ.setdefault('XLA_FLAGS', '--xla_backend_optimization_level=0')

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def run_python():
    """Runs Python code or a script's arguments in a child process and returns what it printed.

    `devices` virtual CPU devices; the child fails the test if it exits with another code than
    `code`.
    """

    def run(*arguments: str, devices: int = 1, code: int = 0, **environment: str):
        flags = f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count={devices}'
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {'PYTHONPATH': str(ROOT), 'XLA_FLAGS': flags} | environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result

    return run


@pytest.fixture
def refusal():
    """Calls a function with the arguments, and returns the one line of the UserError it raises."""

    def call(function, *arguments, **keywords) -> str:
        with pytest.raises(UserError) as caught:
            function(*arguments, **keywords)
        assert '\n' not in str(caught.value)
        return str(caught.value)

    return call
