"""Trials over devices, and chunk by chunk on each."""

import json
import pathlib

import numpy as np
import pytest

from transformer.errors import UserError
from transformer.parallel import TrialParallel

SCRIPT = str(pathlib.Path(__file__).with_name('trials_run.py'))


def test_trials_are_spread_over_devices(run_python):
    result = json.loads(run_python(SCRIPT, devices=2).stdout)
    assert result['all'] == 2
    for layout in result['layouts']:
        assert layout['devices'] == layout['spread'] == 2
        assert layout['per_device'] == 3  # five trials and a place left over
        assert layout['first'] == [3.0 * x for x in range(6)]
        assert layout['second'] == [x + 1.0 for x in range(6)]


@pytest.mark.parametrize(('trials', 'chunk', 'slots'), [(5, None, 5), (5, 2, 6), (5, 9, 5)])
def test_chunks_divide_the_slots(trials, chunk, slots):
    parallel = TrialParallel(trials, 1, chunk)
    assert parallel.slots == slots
    numbers = parallel.split(np.arange(slots))
    squares = parallel.map(lambda x: x**2, (0,))(numbers)
    assert parallel.gather(squares).tolist() == [x**2 for x in range(slots)]


def test_more_devices_than_there_are():
    with pytest.raises(UserError, match=r'parallel\.devices is 99'):
        TrialParallel(4, 99)
