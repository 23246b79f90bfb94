"""A model of the sizes that its data has."""

import pytest

from configs import base
from transformer.data import Tokenizer
from transformer.data.tokenizers import train_tokenizer
from transformer.errors import UserError
from transformer.training.experiment import check_config, model_config

BYTES = train_tokenizer('bytes', [])  # 256 and the separator


def config(**model):
    result = base.get_config()
    result.model.update(model)
    return result


def letters(number: int) -> Tokenizer:
    return train_tokenizer('chars', ['abcdefghijklmnop'[: number - 1]])


def test_sizes_are_those_of_the_data_or_larger():
    assert model_config(config(), BYTES).vocab_size == 257
    assert model_config(config(vocab_size=300), BYTES).vocab_size == 300
    both = {'topology': 'encoder_decoder', 'share_embeddings': False}
    made = model_config(config(**both), BYTES, letters(9))
    assert (made.vocab_size, made.encoder_vocab_size) == (257, 9)
    classifier = config(topology='encoder', head='classifier')
    assert model_config(classifier, BYTES, labels=['a', 'b', 'c']).num_classes == 3


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        ({'vocab_size': 256}, r'model\.vocab_size 256 is smaller than the 257 of the data'),
        ({'encoder_vocab_size': 8}, r'model\.encoder_vocab_size 8 is smaller than the 9 of'),
        ({'num_classes': 1}, r'model\.num_classes 1 is smaller than the 2 of the data'),
    ],
)
def test_sizes_below_those_of_the_data_are_refused(model, message):
    with pytest.raises(UserError, match=message):
        model_config(config(**model), BYTES, letters(9), ['a', 'b'])


@pytest.mark.parametrize('implementation', ['cudnn', 'pallas'])
def test_attention_of_another_device_is_refused(implementation):
    message = f'^model.attention_implementation {implementation} needs an? .*: take auto[.]$'
    with pytest.raises(UserError, match=message):
        check_config(config(attention_implementation=implementation))
