"""The formula behind each number that adapters change, with its values (`frog plan MODEL --lora-r N --explain`)."""

from __future__ import annotations

from collections.abc import Iterator

from frog.plan.estimate.adapter_time import AdaptedStep
from frog.plan.estimate.adapters import FROZEN_BYTES, NF4_BYTES, layer_matrices
from frog.plan.estimate.explain import Term
from frog.plan.memory import state_bytes


def explain_adapters(step: AdaptedStep) -> Iterator[Term]:
    """Yield the terms of a run with adapters: their sizes, the memory, and what differs from full training."""
    adapters, layout, memory = step.adapters, step.layout, step.memory
    model, mixture = step.model, bool(step.model.moe_layers)
    sides = " + ".join(f"{matrix.inputs} + {matrix.outputs}" for matrix in adapters.matrices(model, mixture=mixture))
    yield Term(
        "adapters of a layer",
        "r x (inputs + outputs) of each matrix",
        f"{adapters.rank} * ({sides})",
        adapters.layer_parameters(model, mixture=mixture),
        "",
        "Hu et al. 2021",
    )
    small, frozen = adapters.quantized_parameters(model, layout), adapters.frozen_bytes(model, layout)
    others = sum(layout.stage_parameters(model)) - small
    yield Term(
        "frozen weights of the stage",
        "4.127 bits of quantized numbers + bytes of the others",
        f"({NF4_BYTES} * {small:g} + {adapters.rest_bytes} * {others:.12g}) / 2**30",
        frozen / 2**30,
        "GiB",
        "Dettmers et al. 2023",
    )
    for name in ("gradients", "optimizer"):
        size = state_bytes(layout)[name]
        held = getattr(memory, name) / size
        formula = "bytes x adapters of the rank"
        yield Term(name, formula, f"{size} * {held:.9g} / 2**30", getattr(memory, name) / 2**30, "GiB")
    parts = " + ".join(f"{value / 2**30:.6g}" for value in vars(memory).values())
    yield Term("memory", "sum of the kinds", parts, memory.total / 2**30, "GiB")
    layers = step.layers
    for number, words in enumerate(("forward", "backward")):
        products = layers._products(mixture)[number]
        own = layers.adapter_products(mixture)[number]
        yield Term(
            f"products of one layer, {words}",
            "frozen matrices" + (", for inputs' gradients alone" if number else "") + " + adapters",
            f"{1e3 * (products - own):.9g} + {1e3 * own:.9g}",
            1e3 * products,
            "ms",
        )
    if adapters.quantized:
        numel = sum(matrix.numel for matrix in layer_matrices(model, adapters.kind))
        yield Term(
            "a layer's weights written in 16 bits, each pass",
            "(4.127 bits + 2 bytes) x numbers / memory rate",
            f"({NF4_BYTES} + {FROZEN_BYTES}) * {numel} / {step.kernels.memory_rate:.9g} * 1e3",
            1e3 * layers.dequantize_s,
            "ms",
        )
