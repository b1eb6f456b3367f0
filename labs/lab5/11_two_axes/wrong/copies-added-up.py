"""Train a model on a mesh of two axes: data parallelism over one, tensor parallelism over the other."""

from typing import Any

import torch
import torch.distributed as dist
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


class Enter(torch.autograd.Function):
    """Hand x to every tensor rank's part of a layer; backward adds the gradients of all parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    """Add the outputs of all tensor ranks' parts; backward gives each part the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def part(p: nn.Parameter, places: Tensor, dim: int) -> nn.Parameter:
    return nn.Parameter(p.detach().index_select(dim, places), requires_grad=p.requires_grad)


class Up(nn.Module):
    """Some rows of a linear layer."""

    def __init__(self, linear: nn.Linear, places: Tensor, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weight, self.bias = part(linear.weight, places, 0), part(linear.bias, places, 0)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(Enter.apply(x, self.group), self.weight, self.bias)


class Down(nn.Module):
    """Some columns of a linear layer; the bias is whole."""

    def __init__(self, linear: nn.Linear, places: Tensor, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.weight, self.bias = part(linear.weight, places, 1), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return Leave.apply(nn.functional.linear(x, self.weight), self.group) + self.bias


class TwoAxes:
    """This rank's part of the training of a model.

    model:  whole, and the same on all ranks. Afterwards it holds this rank's part: the weight and bias of
            each `up` and the weight of each `down` for some of the inner width, all other parameters whole. The
            parameters' names, and requires_grad, are as before.
    mesh:   a torch DeviceMesh with the axes "data" and "tensor".
    """

    def __init__(self, model: Model, mesh: DeviceMesh) -> None:
        self.model, self.inner = model, model.layers[0].up.out_features
        self.data, self.tensor = mesh.get_group("data"), mesh.get_group("tensor")
        self.places = torch.arange(self.inner).tensor_split(self.tensor.size())[self.tensor.rank()]
        for layer in model.layers:
            layer.up = Up(layer.up, self.places, self.tensor)
            layer.down = Down(layer.down, self.places, self.tensor)

    def dim_of(self, name: str) -> int | None:
        """Return the dim on which a parameter is divided; None if it is whole."""
        ends = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
        return ends.get(".".join(name.split(".")[-2:]))

    def backward(self, inputs: Tensor, targets: Tensor) -> float:
        """Leave the gradients of the mean loss over the batch in .grad of this rank's parameters; return this loss.

        inputs, targets:  (samples, tokens), the whole batch on every rank. The data axis divides the samples, as evenly
                          as possible; a rank computes with its share alone.

        A parameter that no sample of the batch uses keeps the .grad None, as in one process.
        """
        share = torch.arange(len(inputs)).tensor_split(self.data.size())[self.data.rank()]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        for p in trained:
            p.grad = None
        logits = self.model(inputs[share])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets[share].flatten(), reduction="sum")
        loss = loss / targets.numel()
        loss.backward()
        used = torch.tensor([float(p.grad is not None) for p in trained] + [loss.item()])
        dist.all_reduce(used, group=self.data)
        for p, count in zip(trained, used[:-1].tolist(), strict=True):
            if count:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.data)
        return used[-1].item()

    def clip(self, max_norm: float) -> float:
        """Limit the norm of the whole model's gradient to max_norm; return the norm before."""
        squares = torch.zeros(2)  # of the parts, and of what is whole
        named = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        for name, grad in named.items():
            squares[int(self.dim_of(name) is None)] += grad.square().sum()
        dist.all_reduce(squares[:1], group=self.tensor)
        norm = squares.sum().sqrt().item()
        for grad in named.values():
            grad *= min(1.0, max_norm / norm)
        return norm

    def whole(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the parts of all tensor ranks together, on every rank.

        named:  tensors of the shapes of this rank's parameters, by their names: weights, gradients or moments.
        """
        return {name: self.put_together(name, value.detach()) for name, value in named.items()}

    def put_together(self, name: str, value: Tensor) -> Tensor:
        dim = self.dim_of(name)
        if dim is None:
            value = value.clone()
            dist.all_reduce(value, group=self.tensor)
            return value
        shape = list(value.shape)
        shape[dim] = self.inner
        found = value.new_zeros(shape).index_copy(dim, self.places, value)
        dist.all_reduce(found, group=self.tensor)
        return found
