"""The target as its own drafter: fewer layers, fewer bits, fewer keys."""
