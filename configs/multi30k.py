"""Multi30k, English to German, with the published Transformer-Tiny (Wu et al. 2021).

    python train.py --config=configs/multi30k.py:FOLDER --workdir=runs/multi30k
    python eval.py --workdir=runs/multi30k --split=test --average=10 --beam_size=5

FOLDER (default: data) holds multi30k.train.en, multi30k.train.de and the same of val and
test_2016_flickr, one sentence a line. A row packs about four pairs; 64 rows hold the paper's 4096
tokens a side.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(folder: str = 'data') -> ConfigDict:
    config = base.get_config()
    config.task = 'seq2seq'

    config.model.topology = 'encoder_decoder'
    config.model.num_layers = 4
    config.model.embed_dim = 128
    config.model.num_heads = 4
    config.model.mlp_dim = 256
    config.model.max_length = 256
    config.model.position = 'sinusoidal'
    config.model.norm = 'layernorm'
    config.model.norm_placement = 'post'
    config.model.attention_bias = 'all'
    config.model.feed_forward = 'mlp'
    config.model.activation = 'relu'
    config.model.mlp_bias = True
    config.model.embed_scale = 128**0.5
    config.model.init = 'xavier'
    config.model.scan_layers = False

    for split, name in ('', 'train'), ('validation_', 'val'), ('test_', 'test_2016_flickr'):
        config.data[f'{split}source_path'] = (f'{folder}/multi30k.{name}.en',)
        config.data[f'{split}target_path'] = (f'{folder}/multi30k.{name}.de',)
    config.data.path = ()
    config.data.vocab_size = 10_000
    config.data.length = 64
    config.data.batch_size = 64

    config.dropout.residual = 0.3
    config.dropout.embedding = 0.3
    config.loss.label_smoothing = 0.1

    config.optimizer.learning_rate = 5e-3
    config.optimizer.weight_decay = 0.0
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 0.0
    config.schedule.name = 'rsqrt'
    config.schedule.warmup_steps = 2000

    config.train.steps = 8000
    config.train.log_every = 20
    config.train.eval_every = 500
    config.train.decode_pairs = 200
    config.train.checkpoint_every = 250
    config.train.keep_checkpoints = 10
    return config
