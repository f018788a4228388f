"""Tokenizer, chat templates in a sandbox, incremental detokenizing."""
