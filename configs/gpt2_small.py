"""GPT-2, 124M parameters (Radford et al. 2019).

    python train.py --config=configs/gpt2_small.py --workdir=runs/gpt2 --config.data.path=corpus.txt

The paper gives the model, the length and the batch of 512 rows; the optimizer and its schedule are
GPT-3's for the same size (Brown et al. 2020, table 2.1 and appendix B).
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.model.vocab_size = 50_257
    config.model.num_layers = 12
    config.model.embed_dim = 768
    config.model.num_heads = 12
    config.model.mlp_dim = 3072
    config.model.position = 'learned'
    config.model.norm = 'layernorm'
    config.model.norm_eps = 1e-5
    config.model.attention_bias = 'all'
    config.model.feed_forward = 'mlp'
    config.model.activation = 'gelu_tanh'
    config.model.mlp_bias = True
    config.model.dtype = 'bfloat16'

    config.data.path = ()
    config.data.vocab_size = 50_257
    config.data.length = 1024
    config.data.batch_size = 512

    config.optimizer.learning_rate = 6e-4

    config.schedule.warmup_steps = 715  # 375M tokens

    config.train.steps = 572_000  # 300B tokens
    config.train.accumulation = 16
    config.train.log_every = 100
    config.train.eval_every = 2000
    config.train.checkpoint_every = 2000
    return config
