"""Files of published models: shards, and what is refused before it is read."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from transformer.interop.files import open_tensors, read_json, write_tensors

TENSORS = {
    'a': np.arange(6, dtype=np.float32).reshape(2, 3),
    'b': np.ones((4, 4), ml_dtypes.bfloat16),
    'c': np.zeros(5, np.float16),
}


def read(folder):
    with open_tensors(folder) as tensors:
        return {name: tensors[name] for name in tensors.shapes}


@pytest.mark.parametrize(('size', 'count'), [(1 << 20, 1), (56, 2), (1, 3)])
def test_shards_hold_what_one_file_holds(tmp_path, size, count):
    (tmp_path / 'model.safetensors').write_bytes(b'of an earlier model')
    write_tensors(tmp_path, TENSORS.items(), size)
    files = sorted(path.name for path in tmp_path.glob('*.safetensors'))
    if count == 1:
        assert files == ['model.safetensors']
        assert not (tmp_path / 'model.safetensors.index.json').exists()
    else:
        assert files == [f'model-{i:05}-of-{count:05}.safetensors' for i in range(1, count + 1)]
        index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
        assert index['metadata']['total_size'] == sum(t.nbytes for t in TENSORS.values())
    found = read(tmp_path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_one_file_replaces_shards(tmp_path):
    write_tensors(tmp_path, TENSORS.items(), 1)
    write_tensors(tmp_path, [('d', TENSORS['a'])])
    assert [path.name for path in tmp_path.iterdir()] == ['model.safetensors']
    assert read(tmp_path).keys() == {'d'}


@pytest.mark.parametrize('name', ['pytorch_model.bin', 'model.pt', 'weights.ckpt'])
def test_a_pickle_is_refused_with_the_reason(tmp_path, name, refusal):
    (tmp_path / name).write_bytes(b'')
    message = refusal(read, tmp_path)
    assert name in message
    assert 'pickle' in message
    assert 'run any code' in message


def test_a_folder_without_weights_is_refused(tmp_path, refusal):
    assert 'neither model.safetensors' in refusal(read, tmp_path)


def test_a_broken_file_is_refused(tmp_path, refusal):
    (tmp_path / 'model.safetensors').write_bytes(b'not the beginning of a header')
    assert 'is not a safetensors file' in refusal(read, tmp_path)


def test_a_missing_shard_is_refused(tmp_path, refusal):
    write_tensors(tmp_path, TENSORS.items(), 1)
    (tmp_path / 'model-00002-of-00003.safetensors').unlink()
    assert 'model-00002-of-00003.safetensors' in refusal(read, tmp_path)


def test_quantised_weights_are_refused(tmp_path, refusal):
    save_file({'q': np.ones(3, np.int8)}, tmp_path / 'model.safetensors')
    message = refusal(read, tmp_path)
    assert 'q in I8' in message
    assert 'quantised' in message


def test_what_is_no_json_object_is_refused(tmp_path, refusal):
    path = tmp_path / 'config.json'
    assert 'There is no' in refusal(read_json, path)
    path.write_text('{')
    assert 'not JSON' in refusal(read_json, path)
    path.write_text('[1]')
    assert 'no JSON object' in refusal(read_json, path)
