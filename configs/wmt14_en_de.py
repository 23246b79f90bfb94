"""English to German on WMT 2014, as the Transformer's paper trained it (Vaswani et al. 2017).

    python train.py --config=configs/wmt14_en_de.py --workdir=runs/base
    python train.py --config=configs/wmt14_en_de.py:big --workdir=runs/big
    python eval.py --workdir=runs/base --split=test --average=5 --beam_size=4

The 4.5 million pairs come from the Hugging Face hub (`pip install datasets`). 100,000 updates of
the base model and 300,000 of the big one, 25,000 tokens a side each, took the paper 12 hours and
3.5 days on 8 P100; they are meant for a TPU slice or several GPUs.
"""

from ml_collections import ConfigDict

from configs import transformer_base, transformer_big
from transformer.errors import choose

SIZES = {'base': transformer_base, 'big': transformer_big}


def get_config(size: str = 'base') -> ConfigDict:
    config = choose(SIZES, size, 'size').get_config()

    config.model.vocab_size = None  # the tokenizer's
    config.data.path = ('hf:wmt14:de-en:train',)
    config.data.validation_path = ('hf:wmt14:de-en:validation',)  # newstest2013
    config.data.test_path = ('hf:wmt14:de-en:test',)  # newstest2014
    config.data.source_field = 'translation.en'
    config.data.target_field = 'translation.de'

    config.train.decode_pairs = 500
    config.train.keep_checkpoints = 20
    return config
