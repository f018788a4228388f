"""A model folder: two random layers over the tokens of the byte tokenizer."""

from pathlib import Path
from typing import Any

from tests.helpers import byte_tokenizer


def save_byte_model(folder: Path, **extra: Any) -> Any:
    """Write model and tokenizer to a folder; the model. Extra options are its configuration's."""
    from tests.helpers import tiny_models  # imports torch, which some tests do without

    model = tiny_models.make(
        "llama", vocab_size=byte_tokenizer.SIZE, eos_token_id=byte_tokenizer.EOS, **extra
    )
    model.save_pretrained(folder)
    byte_tokenizer.save(folder)
    return model
