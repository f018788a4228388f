"""Backends run a model: open a session, score a tree, commit a path."""
