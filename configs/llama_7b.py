"""LLaMA, 7B parameters (Touvron et al. 2023, sections 2.2 and 2.3, table 2).

    python train.py --config=configs/llama_7b.py --workdir=runs/7b --config.data.path=corpus.txt

Data parallelism keeps the whole training state on every device. How much that is:

    python -m transformer.summary --config=configs/llama_7b.py
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.model.vocab_size = 32_000
    config.model.num_layers = 32
    config.model.embed_dim = 4096
    config.model.num_heads = 32
    config.model.mlp_dim = 11_008
    config.model.max_length = 2048
    config.model.tie_embeddings = False
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.data.path = ()
    config.data.vocab_size = 32_000
    config.data.length = 2048
    config.data.batch_size = 2048  # 4M tokens

    config.optimizer.learning_rate = 3e-4

    config.schedule.warmup_steps = 2000

    config.loss.chunk = 2048

    config.train.steps = 238_000  # 1T tokens
    config.train.accumulation = 64
    config.train.eval_every = 1000
    config.train.checkpoint_every = 1000
    return config
