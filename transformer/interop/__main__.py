"""A run as a folder that Hugging Face's `transformers` loads.

    python -m transformer.interop --workdir=RUN --out=FOLDER

The newest checkpoint is written: its moving average where the run keeps one, as in evaluation, and
with low-rank adapters merged.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from configs import base
from transformer.config import TransformerConfig
from transformer.errors import UserError
from transformer.flags import parse, run_main
from transformer.interop import FAMILIES, save_pretrained
from transformer.interop.pretrained import write_config
from transformer.training.run_folder import read_run, restore_run


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog='python -m transformer.interop',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--workdir', type=Path, required=True, metavar='RUN', help='folder of a run of train.py')
    add('--out', type=Path, required=True, metavar='FOLDER', help='made, or its model replaced')
    add('--family', metavar='NAME', help='model_type (default: the first that fits)')
    args, overrides = parse(parser, argv)
    run = read_run(args.workdir, base.get_config(), overrides)
    if run.source_tokenizer is not None:
        raise UserError(
            f'{args.workdir} has a tokenizer for each side, and a published folder has one.'
        )
    family = args.family or find_family(run.model)
    step, params = restore_run(args.workdir, run)
    ids = {'bos_token_id': run.tokenizer.eos_id}  # documents begin with it
    if run.model.topology == 'encoder_decoder':
        ids['decoder_start_token_id'] = run.tokenizer.eos_id
    save_pretrained(args.out, run.model, params, run.tokenizer, family, ids, run.labels)
    print(f'{args.out}: a {family} model, from step {step:,} of {args.workdir}')


def find_family(config: TransformerConfig) -> str:
    """The first of FAMILIES that can say what a config says.

    Raises:
        UserError: there is none.
    """
    for name, family in FAMILIES.items():
        try:
            write_config(family, config)
        except UserError:
            continue
        return name
    raise UserError(
        'No published family can say what this config says; --family=NAME tells what keeps it '
        f'from being one of {", ".join(FAMILIES)}.'
    )


if __name__ == '__main__':
    run_main(main)
