import json

import pytest

from configs import base


@pytest.fixture
def config(tmp_path):
    """A small experiment on text files that tests put into tmp_path/texts."""
    config = base.get_config()
    config.data.path = (str(tmp_path / 'texts' / '*.txt'),)
    config.data.validation_fraction = 0.3
    config.data.tokenizer = 'bytes'
    config.data.length = 16
    config.data.batch_size = 4
    config.data.cache_dir = str(tmp_path / 'cache')
    return config


@pytest.fixture
def write(tmp_path):
    """write(name, text or bytes or records) makes a file in tmp_path/texts."""

    def write(name, content):
        path = tmp_path / 'texts' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = ''.join(json.dumps(record) + '\n' for record in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def texts(write):
    """Twenty short documents, of 1 to 77 characters, each with words of its own."""
    texts = {f'{i:02}.txt': (f'text{i} ' * 20)[: 4 * i + 1] for i in range(20)}
    for name, text in texts.items():
        write(name, text)
    return texts


@pytest.fixture(params=['stream', 'examples'])
def packed(request, config, texts):
    """The experiment with either way to pack documents into rows."""
    config.data.packing = request.param
    return config
