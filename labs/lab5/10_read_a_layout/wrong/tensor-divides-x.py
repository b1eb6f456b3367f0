"""Read a layout: what a rank holds and sends in a step, from the sizes of a model and a mesh alone."""

from typing import NamedTuple


class Model(NamedTuple):
    """Equal layers down(relu(up(x))) without biases, in float32, trained with Adam.

    up has the shape (inner, width), down (width, inner). A step takes one batch of `tokens` rows of x. The layers come
    after an embedding, so that backward needs the gradient of x in each of them.
    """

    num_layers: int
    width: int
    inner: int
    tokens: int


class Mesh(NamedTuple):
    """The sizes of the axes; their product is the number of ranks.

    data:      divides the tokens. Gradients are all-reduced.
    shard:     divides the tokens, and the weights, gradients and moments (FSDP). A layer's weights are gathered for its
               forward, again for its backward, and freed after each. Its gradients are reduce-scattered.
    tensor:    divides the inner width. Each rank has all of x; the output and the gradient of x are all-reduced.
    pipeline:  divides the layers into stages. A stage sends its output forward and the gradient of its input back.

    Where an axis does not divide a size, its first ranks have one more: 10 layers on 4 stages are 3, 3, 2 and 2.
    """

    data: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1


def held_bytes(model: Model, mesh: Mesh) -> dict[str, float]:
    """Return the bytes on the rank that holds most.

    Returns  {"states": weights, gradients and Adam's two moments; "gathered": whole weights next to the shards;
              "activations": the inputs of up and down, kept from forward to backward}.
    """
    layers, inner = -(-model.num_layers // mesh.pipeline), -(-model.inner // mesh.tensor)
    tokens = model.tokens / (mesh.data * mesh.shard)
    layer = 4 * 2 * model.width * inner  # bytes of a layer's weights, on a rank that has them whole
    return {
        "states": 4 * layers * layer / mesh.shard,
        "gathered": layer if mesh.shard > 1 else 0,
        "activations": 4 * tokens * layers * (model.width / mesh.tensor + inner),
    }


def sent_bytes(model: Model, mesh: Mesh) -> dict[str, float]:
    """Return the bytes that a rank sends in a step on each axis: on the rank that sends most on it.

    All-reduces, all-gathers and reduce-scatters run in rings. Of an axis with one rank, the number is 0.
    """
    layers, inner = -(-model.num_layers // mesh.pipeline), -(-model.inner // mesh.tensor)
    weights = 4 * layers * 2 * model.width * inner
    x = 4 * model.tokens / (mesh.data * mesh.shard) * model.width
    ring = {axis: (size - 1) / size for axis, size in mesh._asdict().items()}
    return {
        "data": 2 * ring["data"] * weights / mesh.shard,
        "shard": 3 * ring["shard"] * weights,
        "tensor": layers * 2 * 2 * ring["tensor"] * x,
        "pipeline": x * min(mesh.pipeline - 1, 2),  # a stage in the middle sends in both directions
    }


def choose(model: Model, meshes: dict[str, Mesh], memory_bytes: float) -> str | None:
    """Return the name of the mesh that sends least among those that fit; None if none fits."""
    fitting = [name for name, mesh in meshes.items() if sum(held_bytes(model, mesh).values()) <= memory_bytes]
    return min(fitting, key=lambda name: sum(sent_bytes(model, meshes[name]).values()), default=None)
