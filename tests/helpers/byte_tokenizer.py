"""A tokenizer of single bytes, and what makes a text and a model folder of it."""

from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from sapwood.tokenizer.tokenizer import Tokenizer

SPECIALS = ("<bos>", "<eos>", "<user>", "<bot>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<user>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
EOS = 257
SIZE = 256 + len(SPECIALS)


def tokenizer() -> FastTokenizer:
    """One token per byte, then the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = FastTokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True) for word in SPECIALS])
    return made


def text() -> Tokenizer:
    """A text with a chat template."""
    return Tokenizer(
        tokenizer(), TEMPLATE, (EOS,), specials={"bos_token": "<bos>", "eos_token": "<eos>"}
    )


def save(folder: Path) -> None:
    """The tokenizer's part of a model folder."""
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(
        '{"bos_token": "<bos>", "eos_token": {"content": "<eos>"}}'
    )
