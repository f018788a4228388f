"""Llama-like models on a CUDA device: few kernels, one graph per pass."""
