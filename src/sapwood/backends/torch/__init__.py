"""Hugging Face models in PyTorch: sessions, KV cache, and three networks that run passes."""
