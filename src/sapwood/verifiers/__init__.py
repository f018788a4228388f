"""Verifiers: turn tree and target probabilities into an accepted path and one more token."""
