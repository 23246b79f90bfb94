"""The families of published models that we read and write: one table each."""

from transformer.interop.families.bart import BART, MARIAN
from transformer.interop.families.bert import BERT, DISTILBERT, ROBERTA
from transformer.interop.families.bloom import BLOOM
from transformer.interop.families.gemma import GEMMA, GEMMA2, GEMMA3
from transformer.interop.families.gpt2 import GPT2
from transformer.interop.families.gpt_neox import GPT_NEOX
from transformer.interop.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from transformer.interop.families.opt import OPT
from transformer.interop.families.t5 import T5

FAMILIES = {
    family.model_type: family
    for family in (
        GPT2,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GPT_NEOX,
        BLOOM,
        OPT,
        BERT,
        ROBERTA,
        DISTILBERT,
        T5,
        BART,
        MARIAN,
    )
}

__all__ = ['FAMILIES']
