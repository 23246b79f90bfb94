"""Decodes, searches and embeds on all devices; prints what came out as JSON.

device_run.py: run by test_devices.py in child processes with several devices.
"""

import json

import jax
from decoding_models import ENDS, PROMPTS, SOURCES, make

from transformer.decoding import beam_search, embed, generate, stream
from transformer.parallel import RowParallel

# The first end first, so that devices stop at different times.
ROWS = [PROMPTS[0], PROMPTS[2], [8, 30], [22, 21, 20, 19], PROMPTS[1]]
NEW = 20
LONGEST = 24  # of a search: the cache is cleared on the way


def greedy(prompts):
    options = {'max_new_tokens': NEW, 'eos_id': ENDS['decoder'], 'chunk': 4}
    return list(stream(*make('decoder'), prompts, **options))


def search(name, prompts, sources=None):
    options = {'beam_size': 3, 'num_results': 2, 'max_new_tokens': LONGEST, 'length_penalty': 0.6}
    found = beam_search(*make(name), prompts, sources, eos_id=ENDS[name], **options)
    return [[[one.tokens, one.score] for one in best] for best in found]


def results():
    draw = {'max_new_tokens': NEW, 'key': jax.random.key(7), 'temperature': 1.0, 'top_k': 20}
    encoder = make('encoder', topology='encoder', head='classifier', num_classes=2)
    return {
        'greedy': greedy(ROWS),
        'one row': greedy(ROWS[:1]),
        'drawn': generate(*make('decoder'), ROWS, first_row=3, **draw),
        'drafted': generate(
            *make('decoder'), ROWS[:2], draft=make('decoder', num_layers=1), **draw
        ),
        'translated': generate(*make('two_tables'), PROMPTS, sources=SOURCES, max_new_tokens=NEW),
        'searched': search('decoder', ROWS),
        'translations searched': search('original', PROMPTS, SOURCES),
        'vectors': embed(*encoder, ROWS).tolist(),
    }


if __name__ == '__main__':
    devices = [len(RowParallel(rows).devices) for rows in (1, 3, 5)]
    print(json.dumps({'devices': devices, 'results': results()}))
