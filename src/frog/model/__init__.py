"""The transformer. It knows nothing of ranks."""

from frog.model.transformer import TinyTransformer

__all__ = ["TinyTransformer"]
