"""A classification head on the transformer: maps the last token's hidden state to one score per class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from frog.core.config import ModelConfig
from frog.core.errors import ConfigError
from frog.train.model.functions import labelled_loss
from frog.train.model.transformer import Linear, TinyTransformer


class Classifier(TinyTransformer):
    """The transformer with `score`, a matrix with one row per class, in place of the output head.

    It is trained like the transformer. Each text has one label: its class, at its last token; all other positions have
    -100. Attention is causal, so padding after the text changes nothing. C is the number of classes.
    Parameters have the names of transformers' LlamaForSequenceClassification, without its prefix `model.`.
    """

    token_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = staticmethod(labelled_loss)

    def __init__(self, config: ModelConfig, num_labels: int, activation_checkpointing: bool = False) -> None:
        if num_labels < 2:
            raise ConfigError(f"a classifier of {num_labels} classes: there must be at least 2")
        super().__init__(config, activation_checkpointing)
        del self.lm_head
        self.score = Linear(config.hidden_size, num_labels)
        nn.init.normal_(self.score.weight, std=config.initializer_range)

    @classmethod
    def from_base(cls, base: TinyTransformer, num_labels: int) -> Classifier:
        """Return a classifier with a copy of the base's weights and a new, randomly initialized head."""
        classifier = cls(base.config, num_labels, base.activation_checkpointing)
        weights = {name: tensor for name, tensor in base.state_dict().items() if not name.startswith("lm_head.")}
        missing, unexpected = classifier.load_state_dict(weights, strict=False)
        assert missing == ["score.weight"], missing
        assert not unexpected
        return classifier

    def head(self, x_BTD: Tensor, labels_BT: Tensor | None) -> Tensor:
        """Apply the norm; return every position's scores (B, T, C), or the mean cross-entropy of labelled positions."""
        x_BTD = self.norm(x_BTD)
        if labels_BT is None:
            scores_BTC: Tensor = self.score(x_BTD)
            return scores_BTC
        return self.token_loss(x_BTD, self.score.weight, labels_BT)

    def classify(self, tokens_BT: Tensor, last_B: Tensor) -> Tensor:
        """Return the scores of texts whose last tokens are at `last_B`.

        Shapes:  tokens_BT (B, T), last_B (B,) -> (B, C)
        """
        scores_BTC = self(tokens_BT)
        rows_B = torch.arange(len(tokens_BT), device=tokens_BT.device)
        scores_BC: Tensor = scores_BTC[rows_B, last_B]
        return scores_BC
