"""Grammars that an output must follow: JSON schemas, regular expressions, context-free rules.

A `Grammar` holds the source as its author wrote it, checked for size alone. `compiled.compiled`
turns it into masks over a model's tokens with llguidance. It is compiled in a separate process
first, which can be killed, so that no grammar can block the server.
"""

from sapwood.structured_output.grammar import Grammar, json_object, json_schema, lark, regex

__all__ = ["Grammar", "json_object", "json_schema", "lark", "regex"]
