"""EAGLE-3 trees built on the device, in one CUDA graph."""
