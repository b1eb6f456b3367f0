"""One block of a small text classifier."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Compute x + dropout(down(gelu(up(norm(x))))): (B, T, D) -> (B, T, D).

    Modules:  `norm`, an nn.LayerNorm over D; `up`, an nn.Linear from D to F; `down`, an nn.Linear from F to D; and a
              dropout that drops with probability `dropout` in training and does nothing in evaluation.
    """

    def __init__(self, width: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_width)
        self.down = nn.Linear(ffn_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
