r"""A small GPT on the characters of Shakespeare: nanoGPT's setting for a CPU (Karpathy 2022).

    python train.py --config=configs/shakespeare_char.py --workdir=runs/char \
        --config.data.path=tinyshakespeare.txt

The text is input.txt in data/tinyshakespeare of github.com/karpathy/char-rnn. Everything is
nanoGPT's but the peak learning rate, three times its 1e-3; docs/results.md has both.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.model.num_layers = 4
    config.model.embed_dim = 128
    config.model.num_heads = 4
    config.model.mlp_dim = 512
    config.model.max_length = 64
    config.model.position = 'learned'
    config.model.norm = 'layernorm'
    config.model.norm_eps = 1e-5
    config.model.norm_bias = False
    config.model.feed_forward = 'mlp'
    config.model.activation = 'gelu'
    config.model.scan_layers = False

    config.data.path = ()
    config.data.tokenizer = 'chars'
    config.data.length = 64
    config.data.batch_size = 12

    config.optimizer.learning_rate = 3e-3
    config.optimizer.b2 = 0.99

    config.train.steps = 2000
    config.train.eval_every = 500
    return config
