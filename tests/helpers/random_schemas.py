"""Random small JSON schemas, the same for the same seed."""

import random
import string
from typing import Any

WORDS = ("red", "blue", "x1", "", "a b", 'quo"te', "back\\slash", "é", "{}", "line\nbreak", "9")
PATTERNS = ("^[a-c]{1,4}$", "^(yes|no)$", "^x[0-9]*y$", "^[A-Z][a-z]{0,3}( [0-9])?$")
FORMATS = ("date", "time", "uuid", "ipv4", "date-time")


def schema(seed: int) -> dict[str, Any]:
    """The schema of this seed: an object or a list at the top."""
    dice = random.Random(seed)
    made: dict[str, Any] = dice.choice([thing, thing, many])(dice, 3)
    return made


def any_of(dice: random.Random, depth: int) -> Any:
    """A schema of any kind."""
    kinds = [
        text,
        text,
        choice,
        whole,
        real,
        truth,
        constant,
        *([thing, many, either] if depth else []),
    ]
    return dice.choice(kinds)(dice, depth)


def thing(dice: random.Random, depth: int) -> dict[str, Any]:
    names = list(dict.fromkeys(name(dice) for _ in range(dice.randint(1, 3))))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {key: any_of(dice, depth - 1) for key in names},
        "required": [key for key in names if dice.random() < 0.7],
        "additionalProperties": False,
    }
    return made


def name(dice: random.Random) -> str:
    return dice.choice(WORDS[:6]) + "".join(
        dice.choices(string.ascii_letters, k=dice.randint(1, 4))
    )


def many(dice: random.Random, depth: int) -> dict[str, Any]:
    least = dice.randint(0, 2)
    return {
        "type": "array",
        "items": any_of(dice, depth - 1),
        "minItems": least,
        "maxItems": least + dice.randint(0, 2),
    }


def either(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [any_of(dice, depth - 1) for _ in range(dice.randint(1, 3))]}


def text(dice: random.Random, depth: int) -> dict[str, Any]:
    roll = dice.random()
    if roll < 0.25:
        return {"type": "string", "pattern": dice.choice(PATTERNS)}
    if roll < 0.4:
        return {"type": "string", "format": dice.choice(FORMATS)}
    least = dice.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + dice.randint(0, 6)}


def choice(dice: random.Random, depth: int) -> dict[str, Any]:
    return {
        "enum": dice.sample([*WORDS, 1, -2, True, None, 2.5, [1], {"k": "v"}], k=dice.randint(1, 4))
    }


def constant(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"const": dice.choice([*WORDS, 0, False, None])}


def whole(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(-300, 300)
    bounds = {"minimum": low, "maximum": low + dice.randint(0, 500)}
    return {
        "type": "integer",
        **{key: value for key, value in bounds.items() if dice.random() < 0.95},
    }


def real(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(-20, 20)
    return {
        "type": "number",
        dice.choice(["minimum", "exclusiveMinimum"]): low,
        "maximum": low + dice.randint(1, 9),
    }


def truth(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"type": dice.choice(["boolean", "null"])}
