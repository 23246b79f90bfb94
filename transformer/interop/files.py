"""The files of a published model: config.json and safetensors, whole or in shards."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer.errors import UserError

CONFIG = 'config.json'
GENERATION = 'generation_config.json'
WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
PICKLES = ('*.bin', '*.pt', '*.pth', '*.ckpt')
DTYPES = ('F64', 'F32', 'F16', 'BF16')
SHARD_BYTES = 4 << 30


class Tensors:
    """The tensors of a folder by name; each is read when asked for, and nothing is kept.

    Attributes:
        shapes: name -> shape of every tensor.
    """

    def __init__(self, files: Iterable[Path], stack: contextlib.ExitStack):
        self._files = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            try:
                file = stack.enter_context(safe_open(path, 'numpy'))
            except (SafetensorError, OSError) as error:
                raise UserError(f'{path} is not a safetensors file: {error}.') from None
            for name in file.keys():  # noqa: SIM118 (not a dict)
                self._files[name] = path, file
                self.shapes[name] = tuple(file.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> np.ndarray:
        path, file = self._files[name]
        dtype = file.get_slice(name).get_dtype()
        if dtype not in DTYPES:
            raise UserError(
                f'{path} has {name} in {dtype}, quantised or no weight: give a model in one of '
                f'{", ".join(DTYPES)}.'
            )
        return file.get_tensor(name)


@contextlib.contextmanager
def open_tensors(folder: Path) -> Iterator[Tensors]:
    """The tensors of model.safetensors, or of the shards that its index names.

    Raises:
        UserError: neither is there, or only files that hold a pickle, or one is broken.
    """
    if (folder / INDEX).is_file():
        files = sorted({folder / name for name in read_json(folder / INDEX)['weight_map'].values()})
    elif (folder / WEIGHTS).is_file():
        files = [folder / WEIGHTS]
    else:
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickles:
            raise UserError(
                f'{folder} has its weights in {pickles[0]}, a pickle, which can run any code when '
                f'it is read: convert it to {WEIGHTS}.'
            )
        raise UserError(f'{folder} has neither {WEIGHTS} nor {INDEX}.')
    with contextlib.ExitStack() as stack:
        yield Tensors(files, stack)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; UserError if there is none."""
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except OSError:
        raise UserError(f'There is no {path}: give the folder of a published model.') from None
    except ValueError as error:
        raise UserError(f'{path} is not JSON: {error}.') from None
    if not isinstance(value, dict):
        raise UserError(f'{path} holds no JSON object.')
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + '\n', encoding='utf-8')


def write_tensors(
    folder: Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes tensors, with their names, to one file or to shards of about `shard_bytes` each.

    At most one shard and a tensor are in memory. What an earlier model left is removed.
    """
    for old in (*folder.glob('model*.safetensors'), folder / INDEX):
        old.unlink(missing_ok=True)
    shards, size, total = [[]], 0, 0

    def write(shard):
        path = folder / f'model-{len(shards):05}.safetensors'
        save_file(dict(shard), path, {'format': 'pt'})
        shards[-1] = [name for name, _ in shard]

    for name, tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            write(shards[-1])
            shards.append([])
            size = 0
        shards[-1].append((name, tensor))
        size, total = size + tensor.nbytes, total + tensor.nbytes
    write(shards[-1])
    _name_shards(folder, shards, total)


def _name_shards(folder: Path, shards: list[list[str]], total: int) -> None:
    """Gives the files their published names, which tell how many there are, and the index."""
    weight_map = {}
    for number, names in enumerate(shards, 1):
        target = WEIGHTS
        if len(shards) > 1:
            target = f'model-{number:05}-of-{len(shards):05}.safetensors'
        (folder / f'model-{number:05}.safetensors').rename(folder / target)
        weight_map |= dict.fromkeys(names, target)
    if len(shards) > 1:
        write_json(folder / INDEX, {'metadata': {'total_size': total}, 'weight_map': weight_map})
