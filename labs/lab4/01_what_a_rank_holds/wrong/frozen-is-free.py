"""Predict the bytes that one rank holds during training, before anything is allocated."""

from torch import nn

KEPT = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}
"""How many tensors an optimizer keeps for each tensor that it updates. They have its shape and dtype."""


def activation_bytes(layers: nn.Sequential, rows: int) -> int:
    """Return the bytes that the forward pass keeps for the backward pass: a worked example.

    layers:  nn.Linear and nn.GELU, all in one dtype.
    rows:    the first layer's input has the shape (rows, in_features). It needs no gradient.
    """
    kept, flows = 0, False  # flows: backward comes this far, because this layer or one before it is trained
    width = itemsize = 0
    for layer in layers:
        if isinstance(layer, nn.Linear):
            itemsize = layer.weight.element_size()
            if layer.weight.requires_grad:
                kept += rows * layer.in_features * itemsize  # its input: the weight's gradient is a product with it
            flows = flows or any(p.requires_grad for p in layer.parameters())
            width = layer.out_features
        elif flows:
            kept += rows * width * itemsize  # its input: GELU's slope depends on it
    return kept


def state_bytes(model: nn.Module, optimizer: str, has_masters: bool) -> dict[str, int]:
    """Return the bytes that one rank holds between backward and the optimizer's step, from the second step on.

    model:        on the device "meta": its tensors have a shape and a dtype, but no memory. Several dtypes may occur.
                  Every trained parameter has a gradient.
    optimizer:    a name in KEPT.
    has_masters:  the optimizer updates a float32 copy (a "master") of each trained parameter in a narrower dtype. It
                  updates float32 parameters directly. If false, it updates all trained parameters directly.

    Returns  {"model": parameters and buffers, "gradients": the .grad of the parameters, "optimizer": masters and kept
             tensors}. Leave out Adam's step counters.
    """
    parameters = list(model.parameters())  # a tied weight occurs once
    trained = [p for p in parameters if p.requires_grad]
    sizes = [4 if has_masters else p.element_size() for p in trained]  # of an element that the optimizer updates
    masters = sum(p.numel() * 4 for p in trained if has_masters and p.element_size() < 4)
    kept = sum(p.numel() * KEPT[optimizer] * size for p, size in zip(trained, sizes, strict=True))
    return {
        "model": sum(t.nbytes for t in [*trained, *model.buffers()]),
        "gradients": sum(p.nbytes for p in trained),
        "optimizer": masters + kept,
    }
