"""Every config file: known fields, a valid model, and the size of the published one."""

import ast
import importlib
from pathlib import Path

import pytest

from configs import base
from transformer.config import transformer_config
from transformer.config_fields import field_names, override
from transformer.config_files import load_config
from transformer.errors import UserError
from transformer.flops import count_parameters
from transformer.functional import span_lengths
from transformer.training.objectives import check_objective
from transformer.training.optimizers import OPTIMIZERS
from transformer.training.schedules import SCHEDULES

FOLDER = Path(base.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob('*.py') if path.stem not in ('base', '__init__'))

# Trained values of the published models, tied tables counted once.
PUBLISHED = {
    'gpt2_small': 124_439_808,
    'gpt2_xl': 1_557_611_200,
    'llama_7b': 6_738_415_616,
    'llama3_8b': 8_030_261_248,
    'bert_base': 109_482_240,
    't5_small': 60_506_624,
    'bloom_560m': 559_214_592,
}


def model_of(config):
    classes = {'num_classes': 5} if config.model.head == 'classifier' else {}
    return transformer_config(config.model, vocab_size=config.model.vocab_size or 66, **classes)


def get(config, name):
    for part in name.split('.'):
        config = config[part]
    return config


@pytest.mark.parametrize('name', NAMES)
def test_config_is_a_locked_base_that_makes_a_model(name):
    config = load_config(FOLDER / f'{name}.py')
    assert config.is_locked
    assert field_names(config) == field_names(base.get_config())
    model = model_of(config)
    corruption = config.corruption
    sizes = config.data.length, config.data.source_length or 1
    if config.task == 'span_corruption':
        sizes = span_lengths(config.data.length, corruption.rate, corruption.mean_span)
    assert 1 <= min(sizes) <= max(sizes) <= model.max_length
    if name != 'bert_base':  # whose head is that of fine-tuning
        check_objective(config, model)
    assert config.data.batch_size % config.train.accumulation == 0
    assert config.data.tokenizer != 'bpe' or config.data.vocab_size <= (
        config.model.vocab_size or config.data.vocab_size
    )
    assert config.optimizer.name in OPTIMIZERS
    assert config.schedule.name in SCHEDULES
    assert config.schedule.warmup_steps < (config.schedule.decay_steps or config.train.steps)


@pytest.mark.parametrize('name', NAMES)
def test_config_states_its_command(name):
    module = importlib.import_module(f'configs.{name}')
    assert f'--config=configs/{name}.py' in module.__doc__


# The other has a parent for each word that it may be given.
@pytest.mark.parametrize('name', sorted({*NAMES} - {'wmt14_en_de'}))
def test_config_sets_only_what_differs_from_its_parent(name):
    tree = ast.parse((FOLDER / f'{name}.py').read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    assigned = [
        node for node in statements if isinstance(node.targets[0], (ast.Name, ast.Attribute))
    ]
    parent = next(node.value.func.value.id for node in assigned if isinstance(node.value, ast.Call))
    config = load_config(FOLDER / f'{name}.py')
    parent = load_config(FOLDER / f'{parent}.py')
    targets = [ast.unparse(node.targets[0]) for node in assigned]
    fields = [target.removeprefix('config.') for target in targets if target != 'config']
    assert fields
    assert [field for field in fields if get(config, field) == get(parent, field)] == []


@pytest.mark.parametrize(('name', 'count'), PUBLISHED.items())
def test_parameter_count_is_the_published_one(name, count):
    assert count_parameters(model_of(load_config(FOLDER / f'{name}.py'))) == count


def test_a_word_chooses_the_size_of_wmt14():
    base, big = (load_config(f'{FOLDER / "wmt14_en_de.py"}:{size}') for size in ('base', 'big'))
    assert (base.model.embed_dim, big.model.embed_dim) == (512, 1024)
    assert load_config(FOLDER / 'wmt14_en_de.py').to_dict() == base.to_dict()
    with pytest.raises(UserError, match=r"size must be one of base, big; not 'bigg'.*'big'\?"):
        load_config(f'{FOLDER / "wmt14_en_de.py"}:bigg')


def test_bert_pretraining_is_two_overrides_away():
    config = load_config(FOLDER / 'bert_base.py')
    override(config, 'model.head', 'masked_lm')
    override(config, 'model.pooler', 'false')
    assert count_parameters(model_of(config)) == 109_514_298


@pytest.mark.parametrize(
    ('name', 'width', 'heads', 'inner'),
    [('transformer_base', 512, 8, 2048), ('transformer_big', 1024, 16, 4096)],
)
def test_the_original_transformer(name, width, heads, inner):
    config = load_config(FOLDER / f'{name}.py')
    model = model_of(config)
    assert (model.embed_dim, model.num_heads, model.mlp_dim) == (width, heads, inner)
    attention, norm = 4 * width**2, 2 * width
    feed_forward = 2 * width * inner + inner + width
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    assert count_parameters(model) == 37_000 * width + 6 * (encoder + decoder)
    # Equation 3 of the paper, at the end of its warmup.
    assert config.optimizer.learning_rate == pytest.approx(width**-0.5 * 4000**-0.5)
    assert model.embed_scale == pytest.approx(width**0.5)


def test_shakespeare_has_the_size_of_nanogpt():
    # nanoGPT reports 0.80M parameters for 65 characters: without its positions, 64 x 128.
    model = transformer_config(load_config(FOLDER / 'shakespeare_char.py').model, vocab_size=65)
    assert count_parameters(model) == 65 * 128 + 64 * 128 + 4 * (12 * 128**2 + 2 * 128) + 128
