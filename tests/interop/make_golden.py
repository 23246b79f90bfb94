"""Writes golden/: outputs of `transformers` for the tiny models. Needs torch and transformers.

python tests/interop/make_golden.py
"""

import json
import pathlib
import tempfile

import numpy as np
from reference import describe, positions_by_index, run
from safetensors.numpy import save_file
from tiny_models import GOLDEN, VARIANTS, make_batch, write_model


def main():
    models, outputs = {}, {}
    for name, variant in VARIANTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            models[name] = describe(variant, scratch / 'random')
            folder = write_model(scratch / 'model', models[name])
            models[name]['by_index'] = positions_by_index(variant)
            for side in 'left', 'right':
                batch = make_batch(side, models[name])
                found = run(folder, variant, batch)
                found['hidden'] = found['hidden'][-1]
                for output, value in found.items():
                    outputs[f'{name}/{side}/{output}'] = value.astype(np.float32)
    GOLDEN.mkdir(exist_ok=True)
    lines = (f'{json.dumps(name)}: {json.dumps(model)}' for name, model in models.items())
    (GOLDEN / 'models.json').write_text('{\n' + ',\n'.join(lines) + '\n}\n')
    save_file(outputs, GOLDEN / 'outputs.safetensors')


if __name__ == '__main__':
    main()
