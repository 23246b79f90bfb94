"""The results of a benchmark: a table, a JSON file, and a picture with what is owed."""

import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from harness import Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer.training.reporting import print_table

OURS, PEER, MET, MISSED = '#8fca8a', '#c9d0d7', '#8fca8a', '#f2a37e'
LINE, PEER_LINES = '#1b7837', ('#1f77b4', '#d95f02', '#7570b3', '#888888')
WIDEST = 4.0  # of the panel of what is owed: from a quarter of it to four times as much
COLUMNS = 'work', 'measured', 'value', 'unit', 'spread', 'owed', 'met'
PROJECT = 'ours'  # how the measured names of the project begin


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """The columns of COLUMNS as a table; values to four digits."""
    if not rows:
        print(f'{title}: nothing measured')
        return
    shown = [{name: row[name] for name in COLUMNS} | {'value': _number(row)} for row in rows]
    print_table(title, shown)


def _number(row: Row) -> str:
    value = row['value']
    if not math.isfinite(value):
        return str(value)
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def write_results(
    folder: pathlib.Path, name: str, title: str, machine: Mapping[str, Any], rows: Sequence[Row]
) -> None:
    """NAME.json and NAME.png in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {'title': title, 'machine': machine, 'rows': list(rows)}
    (folder / f'{name}.json').write_text(json.dumps(content, indent=1) + '\n')
    if rows:
        draw(title, machine, rows).savefig(folder / f'{name}.png')


def draw(title: str, machine: Mapping[str, Any], rows: Sequence[Row]) -> Figure:
    """What was measured on the left; on the right what is owed and how much of it is reached."""
    owed = [row for row in rows if row['owed']]
    units = list(dict.fromkeys(row['unit'] for row in rows if _is_plain(row)))
    groups = [[row for row in rows if _is_plain(row) and row['unit'] == unit] for unit in units]
    panels = len(groups) + bool(owed)
    longest = max([len(owed), *map(_height, groups)])
    size = 1 + 5.4 * panels, 1.8 + 0.36 * max(longest, 6)
    figure = Figure(figsize=size, dpi=110, layout='constrained')
    every = figure.subplots(1, panels, squeeze=False)[0]
    works = list(dict.fromkeys(row['work'] for row in rows))
    figure.suptitle(title if len(works) > 1 else f'{title}: {works[0]}', weight='bold')
    for axes, group in zip(every, groups, strict=False):
        (_draw_lines if _is_line(group) else _draw_bars)(axes, group)
    if owed:
        _draw_owed(every[-1], owed)
    versions = [f'{name} {machine[name]}' for name in ('jax', 'torch') if name in machine]
    text = ', '.join([machine['processor'], f'{machine["cores"]} cores', *versions])
    figure.supxlabel(text, fontsize='small', color='#666666')
    return figure


def _is_plain(row):
    """Whether it is a measurement of one contestant, no ratio."""
    return row['unit'] not in ('x', 'of the best', 'of all')


def _is_line(rows):
    return all('x' in row for row in rows) and len({row['x'] for row in rows}) > 1


def _height(rows):
    return 0 if _is_line(rows) else len(rows)


def _draw_lines(axes: Axes, rows: Sequence[Row]) -> None:
    peer_lines = itertools.cycle(PEER_LINES)
    for name in dict.fromkeys(row['measured'] for row in rows):
        points = sorted((row['x'], row['value']) for row in rows if row['measured'] == name)
        ours = name.startswith(PROJECT)
        color, width = (LINE, 2.2) if ours else (next(peer_lines), 1.4)
        axes.plot(*zip(*points, strict=True), 'o-', color=color, lw=width, label=name)
        axes.annotate(
            name, points[-1], xytext=(6, 0), textcoords='offset points', va='center', color=color
        )
    axes.set(yscale='log', title=rows[0]['unit'], xlabel=rows[0]['x_name'])
    axes.set_xscale('log', base=2)
    ticks = sorted({row['x'] for row in rows})
    axes.set_xlim(ticks[0] / 1.3, ticks[-1] * (ticks[-1] / ticks[0]) ** 0.4)
    axes.set_xticks(ticks, [f'{tick:,}' for tick in ticks], rotation=45, ha='right')
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_formatter('')
    axes.grid(alpha=0.25)


def _draw_bars(axes: Axes, rows: Sequence[Row]) -> None:
    """With the range of all rounds as a line."""
    below = [row['value'] - min(row['rounds']) for row in rows]
    above = [max(row['rounds']) - row['value'] for row in rows]
    colors = [OURS if row['measured'].startswith(PROJECT) else PEER for row in rows]
    values = [row['value'] for row in rows]
    axes.barh(range(len(rows)), values, color=colors, xerr=(below, above), ecolor='#555555')
    for place, row in enumerate(rows):
        _write(axes, 0, place, _number(row))
    _name_places(axes, rows)
    axes.set_title(rows[0]['unit'])
    axes.xaxis.set_major_formatter('{x:,g}')


def _draw_owed(axes: Axes, rows: Sequence[Row]) -> None:
    """Bars from the line of what is owed: to the right it is met, to the left it is missed."""
    for place, row in enumerate(rows):
        share = min(max(_share(row), 1 / WIDEST), WIDEST)
        axes.barh(place, share - 1, left=1, color=MET if row['met'] == 'yes' else MISSED)
        mark = '✓' if row['met'] == 'yes' else '✗'
        _write(axes, 1 / WIDEST, place, f'{mark} {_number(row)}  ({row["owed"]})')
    axes.axvline(1, color='black', lw=1.2)
    _name_places(axes, rows)
    axes.set_xscale('log', base=2)
    axes.set_xlim(1 / WIDEST, WIDEST)
    axes.xaxis.set_major_formatter('{x:g}')
    axes.set_title('reached / owed')


def _write(axes, x, place, text):
    axes.annotate(text, (x, place), xytext=(4, 0), textcoords='offset points', va='center')


def _name_places(axes, rows):
    works = {row['work'] for row in rows}
    single = len(works) == 1
    names = [row['measured'] if single else f'{row["work"]}: {row["measured"]}' for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(alpha=0.25, axis='x')


def _share(row):
    bound, value = float(row['owed'].split()[1]), row['value']
    if row['owed'].startswith('>='):
        return value / bound
    return bound / value if value > 0 else math.inf
