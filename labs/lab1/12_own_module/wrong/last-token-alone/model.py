"""A small text classifier: from tokens to one score for each class."""

import torch
from torch import Tensor, nn

from layers import ResidualBlock


class TextClassifier(nn.Module):
    """Embed the tokens, run the blocks, average over the tokens, score: (B, T) -> (B, num_classes).

    Modules:  `embed`, an nn.Embedding; `blocks`, `num_blocks` of ResidualBlock; `head`, an nn.Linear from the width to
              the classes. The scores are logits: F.cross_entropy takes them as they are.
    """

    def __init__(
        self, vocab_size: int, width: int, ffn_width: int, num_blocks: int, num_classes: int, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, ffn_width, dropout) for _ in range(num_blocks))
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1])
