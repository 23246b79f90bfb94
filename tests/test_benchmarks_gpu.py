"""The benchmark of accelerators: that it runs, here in tiny sizes, and knows devices by name."""

import importlib.util
import json
import math
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'benchmarks'


@pytest.mark.slow
def test_every_part_runs_and_attention_is_right(run_python, tmp_path):
    out = tmp_path / 'gpu.json'
    printed = run_python('benchmarks/gpu.py', '--smoke', '--out', str(out)).stdout
    report = json.loads(out.read_text())
    assert list(report['parts']) == ['values', 'attention', 'training', 'decoding']
    assert report['peak'] == 'measured'
    for part, rows in report['parts'].items():
        assert part in printed
        assert rows
        for row in rows:
            numbers = [x for x in row.values() if isinstance(x, float)]
            assert numbers
            assert all(math.isfinite(x) and x > 0 for x in numbers)
    assert {row['right'] for row in report['parts']['values']} == {'yes'}
    assert {row['implementation'] for row in report['parts']['values']} == {'xla', 'blockwise'}


@pytest.mark.parametrize(
    ('kind', 'flops'),
    [
        ('NVIDIA H200', 989e12),
        ('NVIDIA H100 80GB HBM3', 989e12),
        ('NVIDIA H100 PCIe', 756e12),
        ('NVIDIA A100-SXM4-80GB', 312e12),
        ('TPU v5 lite', 197e12),
        ('TPU v5p', None),
        ('NVIDIA L40', None),  # no L4
        ('cpu', None),
    ],
)
def test_a_device_has_the_rates_of_its_own_name(kind, flops, monkeypatch):
    spec = importlib.util.spec_from_file_location('gpu_timing', FOLDER / 'gpu_timing.py')
    timing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(timing)
    monkeypatch.setattr('transformer.flops.peak_flops', lambda dtype: 1.0)
    monkeypatch.setattr(timing, 'seconds', lambda run: 1.0)
    found, bandwidth, source = timing.best_rates(kind)
    assert (found, source) == ((1.0, 'measured') if flops is None else (flops, 'specified'))
    assert bandwidth > 0


@pytest.mark.slow
def test_trials_side_by_side_are_counted(run_python):
    printed = run_python('benchmarks/gpu_sweep.py', '--trials', '1', '2', '--steps', '3').stdout
    counts = [line.split()[0] for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert counts == ['1', '2']
