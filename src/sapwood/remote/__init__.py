"""Drafters and targets on other machines: messages over one TCP connection."""
