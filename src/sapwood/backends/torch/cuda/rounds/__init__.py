"""Rounds of a batch on the device: draft, pass, verification and commit without the host."""
