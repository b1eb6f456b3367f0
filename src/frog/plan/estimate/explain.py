"""The formula behind each number of a plan, with its values put in (`frog plan MODEL --explain`).

Each `sum` is arithmetic that anyone can repeat; a test evaluates it and compares it with the plan's own number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frog.plan.estimate.budget import CHECKPOINT_BYTES, Budget, num_nodes
from frog.plan.estimate.memory import StepMemory, activations_in_flight, stage_activations
from frog.plan.estimate.step_time import OPTIMIZER_BYTES, StepModel, idle_share
from frog.plan.estimate.utilization import peak_flops, utilization


@dataclass(frozen=True)
class Term:
    """One number: its name, its formula in letters, the same in numbers, and its value."""

    name: str
    formula: str
    sum: str
    value: float
    unit: str
    source: str = ""


def explain_step(step: StepModel) -> Iterator[Term]:
    """Yield the terms of a step's time, in the order of the report."""
    model, layout, constants = step.model, step.layout, step.constants
    heaviest, mean = step.stages
    whole = step.step
    rate = step.kernels.product_rate / 1e12
    yield Term("rate of products", "best measured product x constant `product`", *_rate(step), "TFLOP/s")
    for inner, columns in [*model.attention_products(), *model.ffn_products(model.ffn)]:
        rows, split = layout.tokens, layout.tp
        inner_, columns_ = (inner / split, columns) if columns == model.hidden else (inner, columns / split)
        flops = 2 * rows * inner_ * columns_
        seconds = step.kernels.product(rows, inner_, columns_)
        efficiency = flops / seconds / step.kernels.product_rate
        yield Term(
            f"product {rows} x {inner_:.0f} x {columns_:.0f}",
            "2 r i c / (rate x size efficiency)",
            f"2 * {rows} * {inner_:g} * {columns_:g} / ({_n(rate)}e12 * {_n(efficiency)}) * 1e3",
            seconds * 1e3,
            "ms",
            "roofline, Williams et al. 2009",
        )
    m = layout.num_micro
    for name, value in vars(heaviest.total).items():
        if value:
            parts = " + ".join(_n(getattr(p, name)) for p in (heaviest.forward, heaviest.backward, heaviest.recomputed))
            formula = "m x (forward + backward + recomputed) of the heaviest stage"
            yield Term(_CAUSES[name], formula, f"{m} * ({parts})", value * m, "s")
    if layout.pp > 1:
        sends = step.sends
        yield Term(
            "pipeline bubble",
            "(p - 1) / v x idle share x (mean stage + messages)",
            f"({layout.pp} - 1) / {layout.virtual_stages} * {_n(idle_share(layout))} * "
            f"({_n(mean.total.total)} + {_n(sends)})",
            whole.bubble,
            "s",
            "Narayanan et al. 2021",
        )
    shared, experts = step.optimizer_parameters
    yield Term(
        "optimizer",
        f"{OPTIMIZER_BYTES} bytes x parameters of the rank / memory rate",
        f"{OPTIMIZER_BYTES} * ({_n(shared)} + {_n(experts)}) / {_n(step.kernels.memory_rate)}",
        whole.optimizer,
        "s",
    )
    before = whole.total - whole.other
    yield Term(
        "fixed time, waiting",
        "step_s + jitter x doublings of nodes x the rest",
        f"{constants.step_s} + {constants.jitter} * {_n(step.doublings)} * {_n(before)}",
        whole.other,
        "s",
    )
    flops = model.model_flops_per_token(layout.seq_len)
    yield Term(
        "MFU",
        "model FLOPs per token x tokens / (step x GPUs x peak)",
        f"{_n(flops)} * {layout.global_batch} * {layout.seq_len} / "
        f"({_n(whole.total)} * {layout.num_gpus} * {_n(peak_flops(step))})",
        utilization(step),
        "",
        "Chowdhery et al. 2022",
    )


def explain_memory(step: StepModel, memory: StepMemory) -> Iterator[Term]:
    """Yield the terms of the memory on the rank that holds most, in GiB."""
    layout = step.layout
    shared, experts = step.stage_parameter_parts
    yield Term(
        "parameters of the stage",
        "(layers of the stage + embedding) / tp + experts / ep",
        f"{_n(shared)} + {_n(experts)}",
        step.stage_parameters,
        "",
    )
    each = stage_activations(step.model, layout)
    flight, layers = activations_in_flight(layout), layout.heaviest_layers(step.model.layers)
    yield Term(
        "activations of the first stage",
        "bytes of a layer x layers x micro-batches in flight",
        f"{_n(each)} * {layers} * {_n(flight)} / 2**30",
        each * layers * flight / 2**30,
        "GiB",
        "Korthikanti et al. 2022",
    )
    parts = " + ".join(_n(value / 2**30) for value in vars(memory).values())
    yield Term("memory", "sum of the kinds", parts, memory.total / 2**30, "GiB")


def explain_budget(step: StepModel, budget: Budget) -> Iterator[Term]:
    """Yield the terms of a training of a number of tokens."""
    layout, cluster = step.layout, step.cluster
    yield Term(
        "steps",
        "tokens / (global batch x sequence), rounded up",
        f"-(-{budget.tokens:.0f} // ({layout.global_batch} * {layout.seq_len}))",
        budget.steps,
        "",
    )
    checkpoints = budget.checkpoints
    if checkpoints:
        nodes = num_nodes(layout.num_gpus, cluster)
        yield Term(
            "checkpoint",
            f"{CHECKPOINT_BYTES} bytes x parameters / (nodes x storage)",
            f"{CHECKPOINT_BYTES} * {step.model.num_parameters()} / ({nodes} * {_n(cluster.storage or 0)})",
            checkpoints.write_s,
            "s",
        )
        if checkpoints.young_s is not None and checkpoints.failure_s is not None:
            yield Term(
                "interval of Young",
                "sqrt(2 x checkpoint x mean time between failures)",
                f"(2 * {_n(checkpoints.write_s)} * {_n(checkpoints.failure_s)}) ** 0.5",
                checkpoints.young_s,
                "s",
                "Young 1974",
            )
    yield Term(
        "days",
        "steps x step x slowdown by checkpoints and failures",
        f"{budget.steps} * {_n(step.step.total)} * {_n(checkpoints.slowdown if checkpoints else 1.0)} / 86400",
        budget.wall_s / 86400,
        "days",
    )


def _rate(step: StepModel) -> tuple[str, float]:
    gpu, constants = step.cluster.gpu, step.constants
    if step.layout.precision == "fp8" and gpu.sustained_fp8:
        best, share = gpu.sustained_fp8, constants.product_fp8
    else:
        best, share = gpu.sustained_bf16, constants.product
    return f"{_n(best / 1e12)} * {share}", step.kernels.product_rate / 1e12


def _n(number: float) -> str:
    """Return a number with six digits, as Python reads it."""
    return f"{number:.6g}"


_CAUSES = {
    "products": "matrix products",
    "attention": "attention",
    "memory": "memory-bound operations",
    "launch": "launches",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert parallelism",
}
