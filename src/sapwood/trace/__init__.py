"""Rounds on record: what was drafted, what the target said, what it took; to look at, and to ask what if."""
