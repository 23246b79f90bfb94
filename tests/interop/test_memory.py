"""How much memory loading takes: the parameters once, and little beside them."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import TransformerConfig
from transformer.flops import parameter_shapes
from transformer.interop import FAMILIES
from transformer.interop.files import CONFIG, write_json, write_tensors
from transformer.interop.pretrained import write_config
from transformer.interop.tensors import published_tensors

MODEL = TransformerConfig(
    vocab_size=2000,
    num_layers=24,
    embed_dim=256,
    num_heads=4,
    mlp_dim=1024,
    max_length=32,
    scan_layers=False,
)
# What the process has allocated after every tensor that is read, beyond what it had before.
LOAD = """
import dataclasses, re, sys
from pathlib import Path
import jax
from transformer.flops import parameter_shapes
from transformer.interop import files, load_pretrained, read_pretrained

def allocated():
    return int(re.search(r'RssAnon:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) * 1024

def read(tensors, name, original=files.Tensors.__getitem__):
    tensor = original(tensors, name)
    seen.append(allocated())
    return tensor

files.Tensors.__getitem__ = read
options = {'param_dtype': sys.argv[3], 'scan_layers': sys.argv[4] == 'scanned'}
seen = []
load_pretrained(sys.argv[1], **options)  # imports and compiles
options['dtype'] = 'float32'
for scan_layers in options['scan_layers'], False:  # what tracing the model allocates stays
    changes = options | {'scan_layers': scan_layers}
    parameter_shapes(dataclasses.replace(read_pretrained(sys.argv[2]).config, **changes))
before, seen = allocated(), []
params = load_pretrained(sys.argv[2], **options)[1]
sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
print(max(seen) - before, sum(sizes), max(sizes), len(seen))
"""


def publish(folder, config):
    """The folder of a llama of zeros, in shards of 10 MB."""
    folder.mkdir()
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), parameter_shapes(config))
    family = FAMILIES['llama']
    write_tensors(folder, published_tensors(family, config, params), shard_bytes=10_000_000)
    write_json(folder / CONFIG, write_config(family, config))
    return folder


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp('memory')
    small = TransformerConfig(
        vocab_size=9, num_layers=2, embed_dim=8, num_heads=1, mlp_dim=8, scan_layers=False
    )
    return publish(folder / 'small', small), publish(folder / 'large', MODEL)


@pytest.mark.skipif(not pathlib.Path('/proc/self/status').exists(), reason='needs Linux')
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('layers', ['unrolled', 'scanned'])
def test_parameters_are_never_in_memory_twice(run_python, folders, dtype, layers):
    small, large = folders
    assert len(list(large.glob('model-*.safetensors'))) > 4
    malloc = {'MALLOC_MMAP_THRESHOLD_': '65536'}  # what is freed goes back at once
    printed = run_python('-c', LOAD, str(small), str(large), dtype, layers, **malloc).stdout
    peak, total, largest, reads = map(int, printed.split())
    assert reads == 24 * 9 + 2
    assert total > 100e6 * jnp.dtype(dtype).itemsize / 4
    assert largest < total / 3
    assert peak < 1.4 * total
