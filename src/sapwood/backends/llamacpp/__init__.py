"""GGUF models through llama.cpp: small, quantised, quick on a CPU."""
