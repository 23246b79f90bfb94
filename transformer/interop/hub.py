"""Where a published model is: a local folder, or a name on the Hugging Face hub."""

import functools
import re
from pathlib import Path

from transformer.data.tokenizers import FILE_NAME
from transformer.errors import UserError
from transformer.interop.files import CONFIG, GENERATION, INDEX, WEIGHTS

NAME = r'[\w-][\w.-]*/[\w-][\w.-]*'  # owner/model
# All that is read; never a pickle.
PATTERNS = [CONFIG, GENERATION, FILE_NAME, WEIGHTS, INDEX, 'model-*.safetensors']


def find_model(path: str | Path) -> Path:
    """The folder of a published model, brought from the hub into its cache if need be.

    Args:
        path: a folder or, where there is none of this name, the name of a model on the hub.

    Raises:
        UserError: it is neither, or the hub cannot be asked, or its model has no safetensors.
    """
    folder = Path(path).expanduser()
    if folder.exists():
        return folder
    if not is_hub_name(path):
        raise UserError(
            f'There is no folder {path}: give the folder of a published model, or its name on the '
            'Hugging Face hub, as in openai-community/gpt2.'
        )
    return _download(str(path))


def is_hub_name(path: str | Path) -> bool:
    """Whether this may be the name of a model on the hub, as a relative path may be too."""
    return re.fullmatch(NAME, str(path), re.ASCII) is not None


@functools.cache
def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f'There is no folder {name}. To look for it on the Hugging Face hub: pip install '
            'huggingface_hub.'
        ) from None
    try:
        folder = Path(snapshot_download(name, allow_patterns=PATTERNS))
    except Exception as error:  # of the library, of its HTTP client or of the system
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f'There is no folder {name}, and the Hugging Face hub gives no model of that name: '
            f'{reason.rstrip(".")}.'
        ) from None
    if not any(folder.glob('model*.safetensors')):
        raise UserError(
            f'{name} on the Hugging Face hub has no {WEIGHTS} nor shards of it, and what else it '
            'may have is a pickle, which can run any code when it is read: convert it first.'
        )
    return folder
