"""One step of gradient descent."""

from torch import Tensor


def descend(weights: list[Tensor], gradients: list[Tensor | None], learning_rate: float) -> list[Tensor]:
    """Return the new weights, in the order of the old ones. Do not change the old weights or the gradients.

    Shapes:  a gradient has the shape of its weight, or is None. A weight whose gradient is None does not change.
    """
    new_weights = []
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is None:
            new_weights.append(weight.clone())
        else:
            new_weights.append(weight + learning_rate * gradient)
    return new_weights
