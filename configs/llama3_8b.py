"""Llama 3, 8B parameters (Llama Team 2024, table 3).

    python train.py --config=configs/llama3_8b.py --workdir=runs/8b --config.data.path=corpus.txt

Length, peak learning rate and model are the paper's for 8B. Its warmup and decay are those of the
largest model (section 3.4.1); the batch of 4M tokens is that of LLaMA.
"""

from ml_collections import ConfigDict

from configs import llama_7b


def get_config() -> ConfigDict:
    config = llama_7b.get_config()

    config.model.vocab_size = 128_256
    config.model.num_kv_heads = 8
    config.model.mlp_dim = 14_336
    config.model.max_length = 8192
    config.model.rope.base = 500_000.0
    config.model.norm_eps = 1e-5

    config.data.vocab_size = 128_256
    config.data.length = 8192
    config.data.batch_size = 512

    config.schedule.warmup_steps = 8000
    config.schedule.end_factor = 0.01

    config.train.steps = 1_200_000
    return config
