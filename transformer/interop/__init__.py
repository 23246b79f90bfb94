"""Published checkpoints in and out: Hugging Face folders and names, one table a family."""

from transformer.interop.families import FAMILIES
from transformer.interop.pretrained import load_pretrained, read_pretrained, save_pretrained

__all__ = ['FAMILIES', 'load_pretrained', 'read_pretrained', 'save_pretrained']
