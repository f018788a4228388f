"""Grammars that an output must follow: JSON schemas, regular expressions, context-free rules.

A `Grammar` is what its author wrote, checked for size alone. `compiled` turns it into masks over a model's tokens, by
llguidance; it is tried first in a process of its own, which can be killed, so that no text can hold up the server.
"""

from sapwood.grammar.compiled import Compiled, compiled, prepare
from sapwood.grammar.source import Grammar, json_object, json_schema, lark, regex

__all__ = ["Compiled", "Grammar", "compiled", "json_object", "json_schema", "lark", "prepare", "regex"]
