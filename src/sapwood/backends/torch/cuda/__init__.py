"""Widely used architectures on CUDA: Triton kernels, a pass in one CUDA graph."""
