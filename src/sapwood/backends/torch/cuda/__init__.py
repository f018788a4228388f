"""Llama-like models on CUDA: Triton kernels, a pass in one CUDA graph."""
