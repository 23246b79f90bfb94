"""Three processes on one study; one of them is killed with trials in its hands.

study_run.py STORAGE: run by test_study.py. Prints what the study holds in the end as JSON.
"""

import collections
import json
import os
import signal
import sys
import time

import alembic.command  # noqa: F401  # slow to import, so once for all processes
import sqlalchemy.orm  # noqa: F401

from configs import base
from transformer.training.sweep.space import grid, make_space
from transformer.training.sweep.study import Study

TRIALS = grid({'seed': range(12)})


def claim_and_die(storage, pipe):
    study = Study('three', storage, make_space(TRIALS, base.get_config()), None)
    assert len(study.claim(2)) == 2
    os.write(pipe, b'..')  # one for each of the others
    os.kill(os.getpid(), signal.SIGKILL)


def work(storage, pipe):
    os.read(pipe, 1)
    study = Study('three', storage, make_space(TRIALS, base.get_config()), None)
    while study.unfinished():
        study.give_back_dead()
        for trial in study.claim(2):
            seed = trial.params['seed']
            study.report(trial, 1, {'loss': float(seed)})
            study.finish(trial, float(seed))
        time.sleep(0.02)
    study.close()


def main(storage):
    children, (read, write) = [], os.pipe()
    for function, end in (claim_and_die, write), (work, read), (work, read):
        if not (child := os.fork()):
            function(storage, end)
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    study = Study('three', storage, make_space(TRIALS, base.get_config()), None)
    records = study.records()
    study.close()
    print(
        json.dumps(
            {
                'statuses': statuses,
                'states': collections.Counter(record.state.name for record in records),
                'seeds': sorted(record.params['seed'] for record in records),
                'values': sorted(record.value for record in records),
                'workers': len({record.user_attrs['worker'] for record in records}),
            }
        )
    )


if __name__ == '__main__':
    main(*sys.argv[1:])
