"""Model FLOPs utilization (MFU), and what takes the rest of the GPUs' peak.

Source: Chowdhery et al. 2022, PaLM, appendix B; attention counts causally, as half of all scores.
"""

from __future__ import annotations

from frog.plan.estimate.layer_time import Times
from frog.plan.estimate.step_time import StepModel


def peak_flops(step: StepModel) -> float:
    """Return the peak of one GPU, dense, in the format of the large products."""
    gpu, layout = step.cluster.gpu, step.layout
    return layout.narrow * gpu.peak_narrow(layout.precision) or gpu.peak_bf16


def utilization(step: StepModel) -> float:
    """Return the fraction of the peak that the model's own operations use."""
    return _ideal_s(step) / step.step.total


def _ideal_s(step: StepModel) -> float:
    layout = step.layout
    flops = step.model_flops * layout.global_batch * layout.seq_len
    return flops / (layout.num_gpus * peak_flops(step))


def losses(step: StepModel) -> dict[str, float]:
    """Return the fractions of the step, by cause, that are not the model's operations at the peak.

    With the utilization they add up to 1.
    """
    layout = step.layout
    heaviest, mean = step.stages
    whole = step.step
    tokens = layout.global_batch * layout.seq_len / (layout.num_gpus * peak_flops(step))
    ideal_products = step.product_flops * tokens
    ideal_attention = step.attention_flops * tokens
    own: Times = (mean.forward + mean.backward) * layout.num_micro
    again = mean.recomputed * layout.num_micro
    uneven = (heaviest.total.total - mean.total.total) * layout.num_micro
    seconds = {
        "products below the peak": own.products - ideal_products,
        "attention below the peak": own.attention - ideal_attention,
        "memory-bound operations": own.memory,
        "launches": own.launch,
        "recomputation": again.total,
        "tensor parallelism": own.tensor,
        "context parallelism": own.context,
        "expert parallelism": own.expert,
        "uneven stages": uneven,
        "pipeline messages": whole.pipeline,
        "pipeline bubble": whole.bubble,
        "data parallelism": whole.data,
        "optimizer": whole.optimizer,
        "fixed time, waiting": whole.other,
    }
    return {cause: value / whole.total for cause, value in seconds.items()}
