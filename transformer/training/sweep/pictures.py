"""Pictures of a study: learning curves, parallel coordinates, scatters, importance."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from transformer.training.sweep.results import Result, number, ranked, short_names
from transformer.training.sweep.space import to_text

BLUE, ORANGE, GREY = '#1f77b4', '#d95f02', '#999999'
COLOURS = colormaps['viridis_r'].resampled(256)
LOGARITHMIC_RATIO = 10  # of listed values, largest over smallest: then the axis is logarithmic
FEW = 6  # different values that each get a tick of their own
BAND = 0.05  # height over which lines through the same value are spread


def draw_curves(results: Sequence[Result], metric: str, direction: str) -> bytes:
    """A PNG: the metric of every trial by its updates, the best trial in front."""
    figure = _figure(9, 4.8)
    axes = figure.subplots()
    drawn = [result for result in results if result.curve]
    best = ranked(results, direction)[:1]
    shade = _shades([result.value for result in drawn], direction)
    marker = 'o' if all(len(result.curve) == 1 for result in drawn) else ''
    for result in drawn:
        steps, values = zip(*result.curve, strict=True)
        color, width = shade(result.value), 1.1
        axes.plot(steps, values, color=color, lw=width, alpha=0.75, marker=marker)
        if result.state == 'pruned':
            axes.plot(steps[-1], values[-1], 'x', color=GREY, ms=6)
    for result in best:
        steps, values = zip(*result.curve, strict=True)
        label = f'trial {result.number}: {number(result.value)}'
        axes.plot(steps, values, color=ORANGE, lw=2.2, marker='o', ms=4, label=label, zorder=9)
    if any(result.state == 'pruned' for result in drawn):
        axes.plot([], [], 'x', color=GREY, ms=6, label='pruned')
    starts = [result.curve[0][1] for result in drawn]
    _limit(axes, [one.value for one in drawn if one.value is not None], starts, direction)
    axes.set(title='Learning curves', xlabel='updates', ylabel=_metric_label(metric))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return _png(figure)


def draw_parallel(results: Sequence[Result], metric: str, direction: str) -> bytes:
    """A PNG: one axis a field and one of the metric, one line a complete trial."""
    chosen = ranked(results, direction)
    fields = _varied(chosen)
    figure = _figure(max(6, 1.9 * (len(fields) + 1)), 4.8)
    axes = figure.subplots()
    columns = [_column(chosen, field) for field in fields]
    columns.append(Column([one.value for one in chosen], log=False))
    names = [*short_names(fields).values(), metric]
    heights = np.array([column.heights for column in columns]).T  # [trials, columns]
    spread = np.linspace(-BAND / 2, BAND / 2, len(chosen))[:, None]  # the best one lowest
    heights = heights + spread * [column.few for column in columns]
    shade = _shades([one.value for one in chosen], direction)
    places = np.arange(len(columns))
    lines = [np.column_stack([places, row]) for row in heights]
    colours = [shade(one.value) for one in chosen]
    lines.reverse(), colours.reverse()  # the better ones above
    axes.add_collection(LineCollection(lines, colors=colours, lw=1.3, alpha=0.7))
    axes.plot(places, heights[0], color=ORANGE, lw=2.6, marker='o', ms=5, zorder=9)
    for place, column in enumerate(columns):
        axes.axvline(place, color='#444444', lw=0.8, zorder=8)
        for height, text in column.ticks:
            axes.annotate(
                text,
                (place, height),
                xytext=(5, 0),
                textcoords='offset points',
                va='center',
                fontsize=8.5,
                zorder=10,
                bbox={'color': 'white', 'alpha': 0.75, 'pad': 0.8},
            )
    axes.set_xticks(places, names)
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.set(xlim=(-0.15, len(columns) - 0.55), ylim=(-0.06, 1.06))
    axes.set_title(f'Parallel coordinates, the best trial ({chosen[0].number}) in orange')
    axes.spines[:].set_visible(False)
    return _png(figure)


def draw_scatters(results: Sequence[Result], metric: str, direction: str) -> bytes:
    """A PNG: for each field, the metric of every complete trial by the field's value."""
    chosen = ranked(results, direction)
    fields = _varied(chosen)
    wide = min(3, len(fields))
    rows = -(-len(fields) // wide)
    figure = _figure(3.6 * wide, 3.1 * rows + 0.3)
    panels = figure.subplots(rows, wide, sharey=True, squeeze=False)
    for axes in panels.flat[len(fields) :]:
        axes.set_visible(False)
    values = [one.value for one in chosen]
    for axes, field in zip(panels.flat, fields, strict=False):
        column = _column(chosen, field)
        axes.scatter(column.places, values, s=26, color=BLUE, alpha=0.65, lw=0)
        axes.scatter(column.places[0], values[0], s=60, color=ORANGE, zorder=9, lw=0)
        if column.few:
            _mark_medians(axes, column.places, values)
        column.label(axes)
        axes.set_xlabel(field)
        axes.grid(alpha=0.25)
        _limit(axes, values, [], direction)
    for axes in panels[:, 0]:
        axes.set_ylabel(_metric_label(metric))
    figure.suptitle(f'{metric} by hyperparameter, the best trial in orange', weight='bold')
    return _png(figure)


def draw_importance(importance: Mapping[str, float]) -> bytes:
    """A PNG: a bar for each field."""
    figure = _figure(7, 1.2 + 0.42 * len(importance))
    axes = figure.subplots()
    names = list(importance)[::-1]
    values = [importance[name] for name in names]
    axes.barh(names, values, color=BLUE, height=0.62)
    for place, value in enumerate(values):
        axes.text(value + 0.01, place, f'{value:.0%}', va='center', fontsize=9)
    axes.set(title='Importance (PED-ANOVA)', xlim=(0, max(values) * 1.12 + 0.02))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:.0%}'))
    axes.spines[['top', 'right']].set_visible(False)
    return _png(figure)


class Column:
    """The values of one field as places on an axis.

    Attributes:
        kind: 'numbers', 'logarithms' or 'names'.
        places: [trials] floats: the numbers, or of each name its rank.
        heights: the same, from 0 to 1 (of numbers far apart, of their logarithms).
        ticks: (height, text) to write beside the axis.
        few: some values occur more than once, and there are not many.
    """

    def __init__(self, values: Sequence[Any], log: bool | None = None):
        """Numbers are drawn by their logarithm if `log`; None: if they are far apart."""
        numeric = all(isinstance(value, (int, float)) for value in values)
        numeric = numeric and not any(isinstance(value, bool) for value in values)
        self.kind = 'numbers' if numeric else 'names'
        if numeric and log is None:
            log = max(values) >= LOGARITHMIC_RATIO * min(values) > 0
        if numeric and log:
            self.kind = 'logarithms'
        self._names = sorted({to_text(value) for value in values})
        if self.kind == 'names':
            self.places = np.array([self._names.index(to_text(v)) for v in values], float)
        else:
            self.places = np.array(values, float)
        scaled = np.log(self.places) if self.kind == 'logarithms' else self.places
        low, high = scaled.min(), scaled.max()
        distinct = len(set(self.places))
        self.few = distinct <= FEW and distinct < len(values)
        self.heights = (scaled - low) / (high - low) if high > low else np.full(len(values), 0.5)
        self.ticks = self._ticks(low, high)

    def _ticks(self, low, high):
        if high == low:
            text = self._names[0] if self.kind == 'names' else number(self.places[0])
            return [(0.5, text)]
        if self.kind == 'names':
            return [(i / (len(self._names) - 1), name) for i, name in enumerate(self._names)]
        distinct = sorted(set(self.places))
        if len(distinct) <= FEW:
            scaled = [math.log(v) if self.kind == 'logarithms' else v for v in distinct]
            return [
                ((s - low) / (high - low), number(v)) for s, v in zip(scaled, distinct, strict=True)
            ]
        marks = np.linspace(low, high, 5)
        values = np.exp(marks) if self.kind == 'logarithms' else marks
        return [(h, number(v)) for h, v in zip(np.linspace(0, 1, 5), values, strict=True)]

    def label(self, axes: Axes) -> None:
        """Makes the horizontal axis one of such values."""
        if self.kind == 'names':
            axes.set_xticks(range(len(self._names)), self._names)
            axes.set_xlim(-0.5, len(self._names) - 0.5)
            return
        if self.kind == 'logarithms':
            axes.set_xscale('log')
        distinct = sorted(set(self.places))
        if len(distinct) <= FEW:
            axes.set_xticks(distinct, [number(value) for value in distinct])
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis='x', which='minor', length=0)


def _mark_medians(axes, places, values):
    for place in sorted(set(places)):
        here = [value for at, value in zip(places, values, strict=True) if at == place]
        axes.plot(place, np.median(here), '_', color='black', ms=22, mew=1.6, zorder=8)


def _limit(axes: Axes, finals: Sequence[float], starts: Sequence[float], direction: str) -> None:
    """Leaves out what is far worse than most, which would press the rest together."""
    sign = 1 if direction == 'minimize' else -1
    ordered = sorted(sign * value for value in finals)
    if not ordered:
        return
    first = [sign * value for value in starts if math.isfinite(value)]
    best, typical = ordered[0], ordered[int(0.75 * (len(ordered) - 1))]
    worst = typical + 1.5 * (typical - best)
    if first:
        worst = max(worst, min(float(np.median(first)), best + 8 * (typical - best)))
    worst = min(worst, max([*ordered, *first]))
    margin = 0.05 * (worst - best) or 0.05 * abs(best) or 1.0
    axes.set_ylim(*sorted((sign * (best - margin), sign * (worst + margin))))


def _column(results: Sequence[Result], field: str) -> 'Column':
    return Column([one.overrides[field] for one in results], results[0].log_scale(field))


def _varied(results: Sequence[Result]) -> list[str]:
    """The fields with more than one value among the results."""
    fields = list(dict.fromkeys(name for result in results for name in result.overrides))
    texts = {field: {to_text(one.overrides.get(field)) for one in results} for field in fields}
    return [field for field in fields if len(texts[field]) > 1] or fields


def _shades(values: Sequence[float | None], direction: str) -> Any:
    """value -> colour by its rank among the values: dark is good."""
    known = sorted(
        {value for value in values if value is not None}, reverse=direction == 'minimize'
    )
    ranks = {value: i / max(len(known) - 1, 1) for i, value in enumerate(known)}
    return lambda value: GREY if value is None else COLOURS(0.1 + 0.9 * ranks[value])


def _metric_label(metric: str) -> str:
    return {'loss': 'validation loss (nats a target)'}.get(metric, f'validation {metric}')


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=120, layout='constrained')


def _png(figure: Figure) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format='png')
    return image.getvalue()
