"""Every field of an experiment, its default and its meaning. Other configs start from this one.

`config.model` is made from `TransformerConfig`, where its fields are explained, so that a model
field is written in one place only. An unset optional field is a typed placeholder: it can be set
from the command line, and reads as None until then.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.config import TransformerConfig, model_fields


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = 'causal_lm'  # what is learnt from the data: causal_lm
    config.seed = 0  # of the initial parameters and of dropout

    config.model = model_fields(TransformerConfig)

    config.data = ConfigDict()
    # Corpora: 'stdlib' (the sources of this Python), a file, a glob, or 'hf:NAME' (Hugging Face
    # datasets). Files that end in .jsonl hold one JSON object a line; all others are text.
    config.data.path = ('stdlib',)
    config.data.weights = ()  # share of each corpus in training; empty: by their number of tokens
    config.data.validation_path = ()  # corpora to validate on; empty: part of data.path
    config.data.validation_fraction = 0.1  # that part: documents by hash, or a lone text's tail
    config.data.text_field = 'text'  # of a JSON line that has no prompt and completion
    config.data.tokenizer = 'bpe'  # bytes, chars, bpe, or the path of a tokenizer.json
    config.data.vocab_size = 4096  # of a bpe tokenizer trained here
    # 'stream' cuts the concatenated documents into rows (a document may continue in another row);
    # 'examples' packs whole documents into rows and cuts only those longer than a row.
    config.data.packing = 'stream'
    config.data.length = 256  # tokens in a row
    config.data.batch_size = 16  # rows in a step, over all devices and micro-batches
    config.data.seed = 0  # of the order of the rows
    config.data.cache_dir = placeholder(str)  # tokenised corpora; unset: the user's cache folder

    config.dropout = ConfigDict()  # probability of dropping
    config.dropout.attention = 0.0  # an attention weight
    config.dropout.residual = 0.0  # a value of a sublayer's output
    config.dropout.embedding = 0.0  # a value of the embedded input

    config.loss = ConfigDict()
    config.loss.label_smoothing = 0.0  # epsilon / vocabulary on every token
    config.loss.z_loss = 0.0  # coefficient of log(Z)^2
    config.loss.chunk = 0  # tokens of a device whose logits exist at a time; 0: all

    config.optimizer = ConfigDict()
    config.optimizer.name = 'adamw'  # adamw, adafactor, lion, sgd, muon
    config.optimizer.learning_rate = 1e-3  # peak; for rsqrt see schedule
    config.optimizer.weight_decay = 0.1
    config.optimizer.b1 = 0.9  # decay of the first moment (momentum for sgd and muon)
    config.optimizer.b2 = 0.95  # decay of the second moment (adamw, lion and muon's Adam part)
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 1.0  # largest global gradient norm; 0: no clipping
    config.optimizer.adam_factor = 1.0  # muon: its Adam part's learning rate over the matrices'
    config.optimizer.no_decay = r'(scale|bias)$'  # parameter paths that weight decay leaves alone

    config.schedule = ConfigDict()
    config.schedule.name = 'cosine'  # cosine, linear, rsqrt, constant
    config.schedule.warmup_steps = 100  # linear rise to the peak
    config.schedule.decay_steps = placeholder(int)  # counted from step 0; unset: train.steps
    config.schedule.end_factor = 0.1  # of the peak, at the end of cosine and linear

    config.train = ConfigDict()
    config.train.steps = 1000  # optimizer updates
    config.train.accumulation = 1  # micro-batches in a step
    config.train.on_nonfinite = 'stop'  # or 'continue': the bad update is skipped either way
    config.train.log_every = 10  # steps
    config.train.eval_every = 200  # steps; 0: only at the end
    config.train.eval_batches = 0  # batches of an evaluation during training; 0: the whole split
    config.train.checkpoint_every = 500  # steps; 0: only at the end
    config.train.keep_checkpoints = 2
    config.train.peak_flops = placeholder(float)  # FLOP/s of one device; unset: a measured matmul

    config.parallel = ConfigDict()
    config.parallel.mode = 'pmap'  # data parallelism
    config.parallel.devices = placeholder(int)  # how many; unset: all of this process
    return config.lock()
