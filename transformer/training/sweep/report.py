"""The report of a study: report.html, one file that opens offline, and its pictures as PNGs."""

import base64
import html
import os
import pathlib
import warnings
from collections.abc import Iterable, Sequence

import optuna

from transformer.training.sweep import pictures
from transformer.training.sweep.results import (
    Repetitions,
    Result,
    number,
    ranked,
    repetitions,
    short_names,
    text,
)

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; } tr.best { background: #fdeee0; font-weight: 600; }
img { max-width: 100%; } div.wide { overflow-x: auto; }
pre { background: #f4f4f4; padding: .8rem; white-space: pre-wrap; }
details { margin-top: 1rem; }
"""


def write_report(
    study: optuna.Study, results: Sequence[Result], metric: str, command: str, workdir: pathlib.Path
) -> None:
    """Writes `report.html` and the pictures into the folder, from whatever has ended so far.

    Args:
        command: that trains the best trial alone; '' if no trial is complete.
    """
    direction = study.direction.name.lower()
    images = draw(study, results, metric)
    content = page(study.study_name, results, metric, direction, command, images)
    files = {f'{name}.png': image for name, image in images.items()}
    for name, data in (files | {'report.html': content.encode()}).items():
        temporary = workdir / f'{name}.{os.getpid()}'  # other processes may write the same
        temporary.write_bytes(data)
        temporary.replace(workdir / name)


def draw(study: optuna.Study, results: Sequence[Result], metric: str) -> dict[str, bytes]:
    """The PNGs for which there are trials enough, by name."""
    direction = study.direction.name.lower()
    images = {}
    if any(result.curve for result in results):
        images['curves'] = pictures.draw_curves(results, metric, direction)
    if len(ranked(results, direction)) > 1:
        images['parallel'] = pictures.draw_parallel(results, metric, direction)
        images['scatters'] = pictures.draw_scatters(results, metric, direction)
    if found := importance(study):
        images['importance'] = pictures.draw_importance(found)
    return images


def importance(study: optuna.Study) -> dict[str, float]:
    """The share of each field in what tells good trials from the others; {} of too few trials.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023), with the best quarter of the trials as the good.
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of what Optuna calls experimental
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        try:
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (ValueError, RuntimeError):  # fewer than two trials, or all alike
            return {}
    return found if len(found) > 1 and sum(found.values()) > 0 else {}


def page(
    title: str,
    results: Sequence[Result],
    metric: str,
    direction: str,
    command: str,
    images: dict[str, bytes],
) -> str:
    """The HTML, with everything inside."""
    rows = repetitions(results, direction)
    states = [result.state for result in results]
    counts = ', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(states))
    parts = [f'<h1>Sweep {html.escape(title)}</h1><p>{len(results)} trials: {counts}.</p>']
    if command:
        parts.append(f'<h2>The best trial, alone</h2><pre>{html.escape(command)}</pre>')
    if rows:
        parts.append(f'<h2>By mean {html.escape(metric)}</h2>' + _mean_table(rows, metric))
    for name, image in images.items():
        data = base64.b64encode(image).decode()
        parts.append(f'<p><img alt="{name}" src="data:image/png;base64,{data}"></p>')
    parts.append('<details><summary>All trials</summary>' + _trial_table(results, metric))
    body = '\n'.join([*parts, '</details>'])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f'{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>{body}</body></html>\n'
    )


def _mean_table(rows: Sequence[Repetitions], metric: str) -> str:
    fields = list(dict.fromkeys(name for row in rows for name in row.overrides))
    head = [*short_names(fields).values(), f'{metric}, mean', 'spread', 'trials']
    cells = [
        [
            *(text(row.overrides.get(field)) for field in fields),
            number(row.mean),
            number(row.spread),
            ', '.join(str(one.number) for one in row.results),
        ]
        for row in rows
    ]
    note = '<p>Spread is the standard deviation over seeds.</p>'
    return _table(head, cells, best=0) + note


def _trial_table(results: Sequence[Result], metric: str) -> str:
    fields = list(dict.fromkeys(name for result in results for name in result.overrides))
    head = ['trial', *short_names(fields).values(), metric, 'updates', 'state', 'reason']
    cells = [
        [
            str(one.number),
            *(text(one.overrides.get(field)) for field in fields),
            number(one.value),
            f'{one.curve[-1][0]:,}' if one.curve else '0',
            one.state,
            one.reason,
        ]
        for one in results
    ]
    return _table(head, cells)


def _table(head: Iterable[str], rows: Sequence[Sequence[str]], best: int | None = None) -> str:
    def line(cells, tag, kind=''):
        return f'<tr{kind}>' + ''.join(f'<{tag}>{html.escape(c)}</{tag}>' for c in cells) + '</tr>'

    lines = [line(head, 'th')]
    for place, row in enumerate(rows):
        lines.append(line(row, 'td', ' class="best"' if place == best else ''))
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'
