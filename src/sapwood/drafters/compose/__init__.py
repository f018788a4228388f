"""Drafters made of other drafters or of a second model."""
