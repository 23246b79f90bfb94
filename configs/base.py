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

    config.data = ConfigDict()
    # Corpora: 'stdlib' (the sources of this Python), a file, a glob, or 'hf:NAME' (Hugging Face
    # datasets). Files that end in .jsonl hold one JSON object a line; all others are text. Corpora
    # of pairs: 'dates' (in many languages, to ISO 8601), 'docstrings' (to the package they are
    # from), .tsv files (two columns), .jsonl files, or 'hf:NAME'.
    config.data.path = ('stdlib',)
    config.data.weights = ()  # share of each corpus in training; empty: by their number of tokens
    config.data.validation_path = ()  # corpora to validate on; empty: part of data.path
    config.data.validation_fraction = 0.1  # that part: documents by hash, or a lone text's tail
    config.data.test_path = ()  # corpora for the last evaluation; empty: none
    # Pairs in two text files, line by line, instead of data.path: files of sources, and as many of
    # targets in the same order.
    config.data.source_path = ()
    config.data.target_path = ()
    config.data.validation_source_path = ()
    config.data.validation_target_path = ()
    config.data.test_source_path = ()
    config.data.test_target_path = ()
    config.data.source_field = 'source'  # of a JSON line or a dataset; 'a.b' is b inside a
    config.data.target_field = 'target'
    config.data.text_field = 'text'  # of a JSON line that has no prompt and completion
    config.data.tokenizer = 'bpe'  # bytes, chars, bpe, or the path of a tokenizer.json
    config.data.vocab_size = 4096  # of a bpe tokenizer trained here
    config.data.source_tokenizer = placeholder(str)  # of the sources alone; unset: one for both
    config.data.source_vocab_size = placeholder(int)  # of that one; unset: data.vocab_size
    # 'stream' cuts the concatenated documents into rows (a document may continue in another row);
    # 'examples' packs whole documents into rows and cuts only those longer than a row. Pairs are
    # packed whole.
    config.data.packing = 'stream'
    config.data.length = 256  # tokens in a row
    config.data.source_length = placeholder(int)  # of a seq2seq row's encoder part; unset: length
    config.data.overlong = 'drop'  # seq2seq pairs longer than a row on either side; or 'cut'
    config.data.batch_size = 16  # rows in a step, over all devices and micro-batches
    config.data.seed = 0  # of the order of the rows
    config.data.cache_dir = placeholder(str)  # tokenised corpora; unset: the user's cache folder

    config.dropout = ConfigDict()  # probability of dropping
    config.dropout.attention = 0.0  # an attention weight
    config.dropout.residual = 0.0  # a value of a sublayer's output
    config.dropout.embedding = 0.0  # a value of the embedded input

    config.corruption = ConfigDict()  # what masked_lm and span_corruption hide
    config.corruption.rate = 0.15  # share of the tokens (of the words, with whole_words)
    config.corruption.replace = 0.8  # masked_lm: of the chosen tokens, those that become the mask
    config.corruption.random = 0.1  # masked_lm: those that become a random token; the rest stay
    config.corruption.whole_words = False  # masked_lm: the tokens of a word are chosen together
    config.corruption.mean_span = 3.0  # span_corruption: tokens of a hidden span, on average

    config.loss = ConfigDict()
    config.loss.label_smoothing = 0.0  # epsilon / vocabulary on every token
    config.loss.z_loss = 0.0  # coefficient of log(Z)^2
    config.loss.chunk = placeholder(int)  # tokens with logits at a time; 0: all; unset: by size

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

    config.lora = ConfigDict()  # low-rank adapters, trained instead of the parameters
    config.lora.rank = 0  # 0: none
    config.lora.alpha = 16.0  # their product counts alpha / rank
    config.lora.paths = r'attention/(query|value)/kernel$'  # the kernels that have one

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
    config.train.decode_pairs = 0  # seq2seq: validation pairs decoded then, for BLEU; 0: none
    config.train.checkpoint_every = 500  # steps; 0: only at the end
    config.train.keep_checkpoints = 2
    config.train.frozen = ''  # regular expression of the parameters that stay; empty: none
    config.train.ema_decay = 0.0  # of a moving average of the parameters, then evaluated; 0: none
    config.train.peak_flops = placeholder(float)  # FLOP/s of one device; unset: a measured matmul

    config.parallel = ConfigDict()
    config.parallel.mode = 'pmap'  # data parallelism
    config.parallel.devices = placeholder(int)  # how many; unset: all of this process
    return config.lock()
