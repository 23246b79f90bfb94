"""A picture of a training run: losses above, learning rate and gradient norm below."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = '#1f77b4', '#d95f02', '#1b7837', '#888888'


def draw_curves(lines: Sequence[dict[str, Any]], title: str) -> bytes:
    """A PNG of the metrics of one run.

    Args:
        lines: what `read_metrics` returns: each has `step`, `split` ('train' or 'eval') and
            metrics, None where the number was not finite.
    """
    figure = Figure(figsize=(9, 7), dpi=110, layout='constrained')
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    figure.suptitle(title, weight='bold')
    _draw_losses(losses, lines)
    _draw_rates(rates, rates.twinx(), lines)
    image = io.BytesIO()
    figure.savefig(image, format='png')
    return image.getvalue()


def _draw_losses(axes: Axes, lines: Sequence[dict[str, Any]]) -> None:
    _draw_noisy(axes, *_series(lines, 'train', 'loss'), color=BLUE, label='train')
    steps, values = _series(lines, 'eval', 'loss')
    marker = 'o' if len(values) <= 50 else ''
    axes.plot(steps, values, color=ORANGE, lw=1.6, marker=marker, ms=4.5, label='eval')
    if len(values) and math.isfinite(values[-1]):
        axes.annotate(
            f'{values[-1]:.3f}',
            (steps[-1], values[-1]),
            xytext=(0, 12),
            textcoords='offset points',
            ha='center',
            color=ORANGE,
            weight='bold',
            bbox={'color': 'white', 'alpha': 0.7, 'pad': 1},
        )
    axes.set(title='Loss', ylabel='nats per token')
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def _draw_rates(rates: Axes, norms: Axes, lines: Sequence[dict[str, Any]]) -> None:
    rates.plot(*_series(lines, 'train', 'learning_rate'), color=GREEN, lw=1.6)
    rates.set(title='Learning rate and gradient norm', xlabel='step (optimizer updates)')
    rates.set_ylabel('learning rate', color=GREEN)
    rates.set_ylim(bottom=0)
    rates.ticklabel_format(axis='y', scilimits=(-2, 3))
    rates.grid(alpha=0.25)
    rates.set_zorder(norms.get_zorder() + 1)  # the learning rate in front
    rates.patch.set_visible(False)
    steps, values = _series(lines, 'train', 'gradient_norm')
    positive = np.where(values > 0, values, np.nan)  # a logarithm has no place for the others
    _draw_noisy(norms, steps, positive, color=GREY, label='')
    norms.set_ylabel('gradient norm before clipping', color=GREY)
    norms.set_yscale('log')
    norms.tick_params(which='both', labelsize=8)
    norms.yaxis.set_major_formatter('{x:g}')
    norms.yaxis.set_minor_formatter(_label_1_2_3_5)


def _label_1_2_3_5(value: float, _: int) -> str:
    """The number, if there is room for it between the powers of ten of a logarithmic axis."""
    text = f'{value:g}'
    return text if text.lstrip('0.')[0] in '1235' else ''


def _draw_noisy(axes: Axes, steps: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    """A thin line, and a smoothed one over it where there are points enough."""
    if len(values) < 50:
        axes.plot(steps, values, color=color, lw=1.2, label=label)
        return
    axes.plot(steps, values, color=color, lw=0.7, alpha=0.35, label=label)
    axes.plot(steps, _smoothed(values), color=color, lw=1.6, label=label and f'{label}, smoothed')


def _series(
    lines: Sequence[dict[str, Any]], split: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one metric; a value that was not finite is NaN, a gap in the curve."""
    chosen = [line for line in lines if line['split'] == split and name in line]
    values = [math.nan if line[name] is None else line[name] for line in chosen]
    return np.array([line['step'] for line in chosen]), np.array(values, float)


def _smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of the finite values in a window around each point, 1/25 of the curve.

    At the start, where a loss falls steeply, the window shrinks to stay centred.
    """
    radius = len(values) // 50
    finite = np.isfinite(values)
    known = np.where(finite, values, 0)
    total, count = (np.convolve(a, np.ones(2 * radius + 1), 'same') for a in (known, finite))
    for i in range(radius):
        total[i], count[i] = known[: 2 * i + 1].sum(), finite[: 2 * i + 1].sum()
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
