"""Drafters: propose children of a node."""
