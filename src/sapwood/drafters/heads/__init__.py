"""Drafters with a trained head over the target's hidden states."""
