"""The progress bar: on a terminal, and only for work that takes a while."""

import pytest

from transformer.data import progress as progress_module
from transformer.data.progress import progress


@pytest.mark.parametrize(
    ('terminal', 'patience', 'shown'), [('1', 0, True), ('1', 60, False), ('0', 0, False)]
)
def test_bar(monkeypatch, capsys, terminal, patience, shown):
    monkeypatch.setenv('TTY_COMPATIBLE', terminal)
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setattr(progress_module, 'PATIENCE', patience)
    with progress('tokenising', 10) as advance:
        advance(4)
        advance(6)
    out, err = capsys.readouterr()
    assert out == ''
    assert ('tokenising' in err) == shown
    assert shown or not err
