"""Verification on the device: the target's tokens, and the accepted path."""
