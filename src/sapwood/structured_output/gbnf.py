"""Grammars in the notation of llama.cpp (GBNF), converted to Lark's by llguidance."""

import re

from sapwood.common.extras import needed_by
from sapwood.errors import SapwoodError
from sapwood.structured_output.grammar import Grammar, lark

LONGEST = 16_384  # characters; the converter is slow on longer ones


def gbnf_or_lark(rules: str) -> Grammar:
    """A grammar in either notation; `::=` tells GBNF."""
    if "::=" not in rules:
        return lark(rules)
    if len(rules) > LONGEST:
        raise SapwoodError(
            f"the grammar has {len(rules)} characters, but may have {LONGEST}; make it smaller"
        )
    with needed_by("a grammar"):
        from llguidance.gbnf_to_lark import gbnf_to_lark
    # the converter's time is quadratic in empty lines
    dense = re.sub(r"\s*\n\s*\n\s*", "\n", rules.strip())
    try:
        return lark(gbnf_to_lark(dense))
    except SapwoodError:
        raise
    except RecursionError as error:
        raise SapwoodError("the grammar is nested too deep; flatten it") from error
    except Exception as error:  # the converter raises plain exceptions
        reason = " ".join(str(error).split())[:200]
        raise SapwoodError(f"the grammar cannot be read: {reason}") from error
