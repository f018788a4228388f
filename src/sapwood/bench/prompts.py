"""Prompts that need no file: made by rule, the same on every machine.

`copy` and `edit` ask for text that stands in the prompt, where look-up drafters shine; `random` is
noise, where they guess in vain until the model repeats itself, as small ones soon do at temperature
0; `chat` is a dozen everyday questions; `json` turns sentences into records, half new and half copied;
`long` asks about a text of a few thousand tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sapwood.rng import uniforms

SIZE = 6  # prompts of each suite that is made by rule
NOISE = 64  # tokens of a random prompt
LONG = 60  # lines of a long text, each about 35 tokens

QUESTIONS = (
    "What makes bread rise, and why does it need salt?",
    "Give me five ideas for a rainy afternoon with two children.",
    "Explain how a bicycle stays upright, in simple words.",
    "Write a short polite email that moves a meeting from Monday to Wednesday.",
    "What is the difference between a virus and a bacterium?",
    "List the steps to plant a small apple tree.",
    "Why is the sky blue during the day and red in the evening?",
    "Write a Python function that returns the second largest number of a list.",
    "Compare trains and planes for a journey of 500 kilometres.",
    "Tell me a story about a lighthouse keeper in six sentences.",
    "How do I calculate 15 percent of 240 without a calculator?",
    "What should I check before I buy a used car?",
)

PLACES = ("Arden", "Belmont", "Corvale", "Dunmore", "Elmstead", "Fairholt", "Granby", "Hollins")
PEOPLE = ("Mara Quist", "Tom Hale", "Ines Roy", "Ben Adler", "Lena Voss", "Omar Diaz", "Ruth Kemp", "Paul Nyman")
THINGS = ("oak planks", "copper pipes", "roof tiles", "window frames", "bags of lime", "steel hinges", "paint tins")
STATES = ("arrived on time", "came two days late", "was sent back", "is still on the road", "was paid in advance")

NOUNS = ("count", "total", "value", "price", "weight", "length", "score", "offset")
RENAMED = ("amount", "result", "measure", "quantity")
VERBS = ("load", "scale", "check", "merge", "clean", "report")


@dataclass(frozen=True, slots=True)
class Noise:
    """A prompt of random tokens, drawn once the vocabulary is known."""

    key: int
    length: int

    def tokens(self, vocab: int) -> list[int]:
        """The tokens."""
        return [int(vocab * place) for place in uniforms(self.key, self.length)]


def chooser(key: int) -> Callable[..., str]:
    """Picks words one after the other, the same ones for the same key."""
    places: Iterator[float] = iter(uniforms(key, 4096).tolist())
    return lambda *words: words[int(next(places) * len(words))]


def ledger(key: int, lines: int) -> str:
    """A text of plain sentences about deliveries."""
    pick = chooser(key)
    said = []
    for number in range(1, lines + 1):
        amount = pick("12", "18", "25", "40", "64", "150")
        said.append(
            f"Delivery {number}: {pick(*PEOPLE)} ordered {amount} {pick(*THINGS)} for the yard in {pick(*PLACES)}, "
            f"and the load {pick(*STATES)}."
        )
    return "\n".join(said)


def listing(key: int, functions: int) -> tuple[str, str]:
    """A Python listing and the variable that all of it uses."""
    pick = chooser(key)
    name, blocks = pick(*NOUNS), []
    for number in range(1, functions + 1):
        verb, step = pick(*VERBS), pick("2", "3", "5", "10")
        blocks.append(
            f"def {verb}_{number}(items, {name}=0):\n"
            f"    for item in items:\n"
            f"        if item > {name}:\n"
            f"            {name} = {name} + item * {step}\n"
            f'    print("{verb}", {name})\n'
            f"    return {name}\n"
        )
    return "\n".join(blocks), name


def copy_prompts() -> list[str]:
    """Half ask to repeat a text, half to summarise it in its own words."""
    repeat = "Repeat the following text exactly, word for word:\n\n{}"
    quote = "Summarise the following text in three points, and quote the full sentence that supports each point:\n\n{}"
    return [(quote if number % 2 else repeat).format(ledger(100 + number, 5 + number % 4)) for number in range(SIZE)]


def edit_prompts() -> list[str]:
    """Rename a variable in a listing and give back the whole listing."""
    made = []
    for number in range(SIZE):
        code, old = listing(200 + number, 2 + number % 3)
        new = RENAMED[number % len(RENAMED)]
        made.append(
            f"Rename the variable `{old}` to `{new}` in this code and return all of it:\n\n```python\n{code}```"
        )
    return made


def noise_prompts() -> list[Noise]:
    """Random tokens."""
    return [Noise(300 + number, NOISE) for number in range(SIZE)]


def json_prompts() -> list[str]:
    """Deliveries as a JSON list."""
    keys = "number, customer, amount, goods, place, state"
    ask = f"Turn these deliveries into a JSON list of objects with the keys {keys}. Answer with JSON only.\n\n{{}}"
    return [ask.format(ledger(400 + number, 3 + number % 3)) for number in range(SIZE)]


def long_prompts() -> list[str]:
    """Questions about one line of a long text, and summaries of all of it."""
    made = []
    for number in range(SIZE):
        text, line = ledger(500 + number, LONG + 5 * number), 7 * number + 11
        asked = f"What happened to delivery {line}? Quote the sentence." if number % 2 else "Summarise what went wrong."
        made.append(f"Here is the book of the yard:\n\n{text}\n\n{asked}")
    return made


BUILT_IN: dict[str, Callable[[], Sequence[str | Noise]]] = {
    "copy": copy_prompts,
    "edit": edit_prompts,
    "random": noise_prompts,
    "chat": lambda: QUESTIONS,
    "json": json_prompts,
    "long": long_prompts,
}
