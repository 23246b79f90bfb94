"""Rows decoded on several devices, in child processes, against one device in this process."""

import json
import pathlib

import jax
import pytest
from device_run import LONGEST, ROWS, results

SCRIPT = str(pathlib.Path(__file__).with_name('device_run.py'))


@pytest.fixture(scope='module')
def expected():
    assert jax.local_device_count() == 1
    return json.loads(json.dumps(results()))


def assert_same(found, expected):
    """The tokens are equal; scores and vectors, in other batches, up to rounding."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    else:
        assert found == expected


@pytest.mark.parametrize(('devices', 'used'), [(2, [1, 2, 2]), (4, [1, 3, 4])])
def test_rows_on_several_devices_come_out_as_on_one(run_python, expected, devices, used):
    child = json.loads(run_python(SCRIPT, devices=devices).stdout)
    assert child['devices'] == used  # for one, three and five rows
    assert child['results'].keys() == expected.keys()
    for name, one in expected.items():
        assert_same(child['results'][name], one)


def test_the_first_device_stops_before_the_last(expected):
    lengths = [sum(map(len, parts)) for parts in zip(*expected['greedy'], strict=True)]
    assert len(lengths) == len(ROWS)
    assert max(lengths[:3]) < min(lengths[3:])
    lengths = [len(best[-1][0]) for best in expected['searched']]
    assert max(lengths) == LONGEST > lengths[0]
