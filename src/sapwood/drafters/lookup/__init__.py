"""Drafters that look tokens up in text: prompt, output, corpus, earlier passes."""
