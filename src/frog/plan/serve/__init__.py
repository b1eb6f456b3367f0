"""Serving a model: KV cache, batch, and time per output token on GPUs."""
