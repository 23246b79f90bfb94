"""Maps a function over five trials on all devices, in two layouts; prints what came out as JSON.

trials_run.py: run by test_trial_parallel.py in a child process with several devices.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

from transformer.parallel import TrialParallel


def layout(chunk):
    parallel = TrialParallel(5, chunk=chunk)
    own = parallel.split({'x': np.arange(parallel.slots, dtype=np.float32)})
    shared = parallel.replicate(np.float32([1, 2]))

    def step(state, shared):
        return {'x': jnp.sum(state['x'] * shared)}, state['x'] + 1

    first, second = parallel.map(step, (0, None), donate=True)(own, shared)
    return {
        'devices': len(parallel.devices),
        'per_device': parallel.per_device,
        'spread': len({shard.device for shard in first['x'].addressable_shards}),
        'first': parallel.gather(first)['x'].tolist(),
        'second': parallel.gather(second).tolist(),
    }


if __name__ == '__main__':
    print(json.dumps({'all': jax.local_device_count(), 'layouts': [layout(None), layout(1)]}))
