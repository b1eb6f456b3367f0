"""Train a model on a mesh of two axes: data parallelism over one, tensor parallelism over the other."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


class Layer(nn.Module):
    """x plus two linear layers."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.down(torch.tanh(self.up(self.norm(x_BTD))))


class Model(nn.Module):
    """An embedding, layers, and an output with the embedding's weight."""

    def __init__(self, vocabulary: int, width: int, inner: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hint = nn.Parameter(torch.zeros(width))  # for samples that begin with token 0; a batch has at least one
        self.spare = nn.Parameter(torch.ones(width))  # used by nothing
        self.layers = nn.ModuleList(Layer(width, inner) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD, hinted_B = self.embedding(tokens_BT), tokens_BT[:, 0] == 0
        if hinted_B.any():
            x_BTD = x_BTD + hinted_B[:, None, None] * self.hint
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.head(self.norm(x_BTD))


class TwoAxes:
    """This rank's part of the training of a model.

    model:  whole, and the same on all ranks. Afterwards it holds this rank's part: the weight and bias of
            each `up` and the weight of each `down` for some of the inner width, all other parameters whole. The
            parameters' names, and requires_grad, are as before.
    mesh:   a torch DeviceMesh with the axes "data" and "tensor".
    """

    def __init__(self, model: Model, mesh: DeviceMesh) -> None:
        raise NotImplementedError("fill in TwoAxes")

    def backward(self, inputs: Tensor, targets: Tensor) -> float:
        """Leave the gradients of the mean loss over the batch in .grad of this rank's parameters; return this loss.

        inputs, targets:  (samples, tokens), the whole batch on every rank. The data axis divides the samples, as evenly
                          as possible; a rank computes with its share alone.

        A parameter that no sample of the batch uses keeps the .grad None, as in one process.
        """
        raise NotImplementedError("fill in backward")

    def clip(self, max_norm: float) -> float:
        """Limit the norm of the whole model's gradient to max_norm; return the norm before."""
        raise NotImplementedError("fill in clip")

    def whole(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the parts of all tensor ranks together, on every rank.

        named:  tensors of the shapes of this rank's parameters, by their names: weights, gradients or moments.
        """
        raise NotImplementedError("fill in whole")
