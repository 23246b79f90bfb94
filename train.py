"""Trains the model of a config file: python train.py --config=configs/NAME.py --workdir=DIR"""

import argparse
import pathlib
from collections.abc import Sequence

from transformer.config_fields import override
from transformer.config_files import load_config
from transformer.flags import parse, run_main


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--config', required=True, help='file that defines get_config()')
    parser.add_argument('--workdir', required=True, type=pathlib.Path, help='folder of the run')
    args, overrides = parse(parser, argv)
    config = load_config(args.config)
    for name, value in overrides:
        override(config, name, value)

    from transformer.training.loop import train  # after the flags: it imports jax

    train(config, args.workdir)


if __name__ == '__main__':
    run_main(main)
