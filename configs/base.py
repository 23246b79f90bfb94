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
    # What is learnt from the data: causal_lm, masked_lm and span_corruption read documents, seq2seq
    # and classification read pairs (of a text and its label, for the latter).
    config.task = 'causal_lm'
    config.seed = 0  # of the initial parameters and of dropout

    config.init_from = placeholder(str)  # folder of a run whose parameters to start from

    config.model = model_fields(TransformerConfig)
    config.data = data_fields()
    config.dropout = dropout_fields()
    config.corruption = corruption_fields()
    config.loss = loss_fields()
    config.optimizer = optimizer_fields()
    config.lora = lora_fields()
    config.schedule = schedule_fields()
    config.train = train_fields()
    config.parallel = parallel_fields()
    return config.lock()


def data_fields() -> ConfigDict:
    """Corpora, their tokenizer, and rows and batches of tokens."""
    data = ConfigDict()
    # Corpora: 'stdlib' (the sources of this Python), a file, a glob, or 'hf:NAME' (Hugging Face
    # datasets). Files that end in .jsonl hold one JSON object a line; all others are text. Corpora
    # of pairs: 'dates' (in many languages, to ISO 8601), 'docstrings' (to the package they are
    # from), .tsv files (two columns), .jsonl files, or 'hf:NAME'.
    data.path = ('stdlib',)
    data.weights = ()  # share of each corpus in training; empty: by their number of tokens
    data.validation_path = ()  # corpora to validate on; empty: part of data.path
    data.validation_fraction = 0.1  # that part: documents by hash, or a lone text's tail
    data.test_path = ()  # corpora for the last evaluation; empty: none
    # Pairs in two text files, line by line, instead of data.path: files of sources, and as many of
    # targets in the same order.
    data.source_path = ()
    data.target_path = ()
    data.validation_source_path = ()
    data.validation_target_path = ()
    data.test_source_path = ()
    data.test_target_path = ()
    data.source_field = 'source'  # of a JSON line or a dataset; 'a.b' is b inside a
    data.target_field = 'target'
    data.text_field = 'text'  # of a JSON line that has no prompt and completion
    data.tokenizer = 'bpe'  # bytes, chars, bpe, or the path of a tokenizer.json
    data.vocab_size = 4096  # of a bpe tokenizer trained here
    data.source_tokenizer = placeholder(str)  # of the sources alone; unset: one for both
    data.source_vocab_size = placeholder(int)  # of that one; unset: data.vocab_size
    # 'stream' cuts the concatenated documents into rows (a document may continue in another row);
    # 'examples' packs whole documents into rows and cuts only those longer than a row. Pairs are
    # packed whole.
    data.packing = 'stream'
    data.length = 256  # tokens in a row
    data.source_length = placeholder(int)  # of a seq2seq row's encoder part; unset: length
    data.overlong = 'drop'  # seq2seq pairs longer than a row on either side; or 'cut'
    data.batch_size = 16  # rows in a step, over all devices and micro-batches
    data.seed = 0  # of the order of the rows
    data.cache_dir = placeholder(str)  # tokenised corpora; unset: the user's cache folder
    return data


def dropout_fields() -> ConfigDict:
    """Probabilities of dropping."""
    dropout = ConfigDict()
    dropout.attention = 0.0  # an attention weight
    dropout.residual = 0.0  # a value of a sublayer's output
    dropout.embedding = 0.0  # a value of the embedded input
    return dropout


def corruption_fields() -> ConfigDict:
    """What masked_lm and span_corruption hide."""
    corruption = ConfigDict()
    corruption.rate = 0.15  # share of the tokens (of the words, with whole_words)
    corruption.replace = 0.8  # masked_lm: of the chosen tokens, those that become the mask
    corruption.random = 0.1  # masked_lm: those that become a random token; the rest stay
    corruption.whole_words = False  # masked_lm: the tokens of a word are chosen together
    corruption.mean_span = 3.0  # span_corruption: tokens of a hidden span, on average
    return corruption


def loss_fields() -> ConfigDict:
    """What is added to the cross entropy, and how its logits are made."""
    loss = ConfigDict()
    loss.label_smoothing = 0.0  # epsilon / vocabulary on every token
    loss.z_loss = 0.0  # coefficient of log(Z)^2
    loss.chunk = placeholder(int)  # tokens with logits at a time; 0: all; unset: by size
    return loss


def optimizer_fields() -> ConfigDict:
    """The update of the parameters."""
    optimizer = ConfigDict()
    optimizer.name = 'adamw'  # adamw, adafactor, lion, sgd, muon
    optimizer.learning_rate = 1e-3  # peak; for rsqrt see schedule
    optimizer.weight_decay = 0.1
    optimizer.b1 = 0.9  # decay of the first moment (momentum for sgd and muon)
    optimizer.b2 = 0.95  # decay of the second moment (adamw, lion and muon's Adam part)
    optimizer.eps = 1e-8
    optimizer.clip_norm = 1.0  # largest global gradient norm; 0: no clipping
    optimizer.adam_factor = 1.0  # muon: its Adam part's learning rate over the matrices'
    optimizer.no_decay = r'(scale|bias)$'  # parameter paths that weight decay leaves alone
    return optimizer


def lora_fields() -> ConfigDict:
    """Low-rank adapters, trained instead of the parameters."""
    lora = ConfigDict()
    lora.rank = 0  # 0: none
    lora.alpha = 16.0  # their product counts alpha / rank
    lora.paths = r'attention/(query|value)/kernel$'  # the kernels that have one
    return lora


def schedule_fields() -> ConfigDict:
    """The learning rate, over the updates."""
    schedule = ConfigDict()
    schedule.name = 'cosine'  # cosine, linear, rsqrt, constant
    schedule.warmup_steps = 100  # linear rise to the peak
    schedule.decay_steps = placeholder(int)  # counted from step 0; unset: train.steps
    schedule.end_factor = 0.1  # of the peak, at the end of cosine and linear
    return schedule


def train_fields() -> ConfigDict:
    """Updates, evaluations and checkpoints."""
    train = ConfigDict()
    train.steps = 1000  # optimizer updates
    train.accumulation = 1  # micro-batches in a step
    train.on_nonfinite = 'stop'  # or 'continue': the bad update is skipped either way
    train.log_every = 10  # steps
    train.eval_every = 200  # steps; 0: only at the end
    train.eval_batches = 0  # batches of an evaluation during training; 0: the whole split
    train.decode_pairs = 0  # seq2seq: validation pairs decoded then, for BLEU; 0: none
    train.checkpoint_every = 500  # steps; 0: only at the end
    train.keep_checkpoints = 2
    train.frozen = ''  # regular expression of the parameters that stay; empty: none
    train.ema_decay = 0.0  # of a moving average of the parameters, then evaluated; 0: none
    train.peak_flops = placeholder(float)  # FLOP/s of one device; unset: a measured matmul
    return train


def parallel_fields() -> ConfigDict:
    """How the work is spread over devices."""
    parallel = ConfigDict()
    parallel.mode = 'pmap'  # data parallelism
    parallel.devices = placeholder(int)  # how many; unset: all of this process
    return parallel
