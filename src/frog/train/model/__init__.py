"""The transformer. It does not depend on ranks or process groups."""

from frog.train.model.transformer import TinyTransformer

__all__ = ["TinyTransformer"]
