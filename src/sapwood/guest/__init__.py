"""Sapwood inside other engines: it drafts for vLLM and SGLang, which verify and serve."""
