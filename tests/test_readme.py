"""The README says what is: its Python runs, and the files and flags it names exist."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()
SNIPPETS = re.findall(r'```python\n(.*?)```', README, re.DOTALL)


@pytest.mark.parametrize('number', range(len(SNIPPETS)))
def test_snippets_run(number):
    exec(compile(SNIPPETS[number], f'README snippet {number}', 'exec'), {})


def test_scripts_and_configs_that_are_named_exist():
    named = set(re.findall(r'(?:python |--config=)([\w/]+\.py)', README))
    assert {'train.py', 'eval.py', 'generate.py', 'configs/quickstart.py'} <= named
    configs = re.search(r'\| config \| what it is \|\n(.*?)\n\n', README, re.DOTALL).group(1)
    first_cells = ''.join(row.split('|')[1] for row in configs.splitlines()[1:])
    named |= {f'configs/{name}.py' for name in re.findall(r'`(\w+)`', first_cells)}
    for name in named:
        assert (ROOT / name).is_file(), name
    existing = {f'configs/{path.name}' for path in (ROOT / 'configs').glob('[a-z]*.py')}
    assert existing - {'configs/base.py'} <= named
