"""Adaptive, tree-based speculative decoding: the same output, faster."""
