"""Triton kernels of a pass: linear layers, attention, top-k."""
