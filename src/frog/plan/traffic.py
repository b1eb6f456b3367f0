"""What one rank sends in one optimizer step: every collective, with its payload and the bytes that leave the rank.

Of a strategy whose ranks go apart it is the last step of a round; in the others they send nothing.

Left out are the few numbers that ranks agree on (loss, norm, a request to stop): some 100 bytes a step, which is why
a run sends a little more.
"""

from __future__ import annotations

from frog.config import RunConfig
from frog.plan.data_traffic import data
from frog.plan.flow import Flow, merge
from frog.plan.layout import Layout
from frog.plan.model_traffic import context, experts, pipeline, tensor


def step_traffic(config: RunConfig, world_size: int, rank: int = 0) -> list[Flow]:
    """Every flow of one optimizer step on one rank; those of one axis and operation are one entry.

    Assumes: float32 (at lower precision tensor and context parallelism send less); every expert gets as many
             tokens.
    """
    layout = Layout(config, world_size, rank)
    parts = (data, tensor, context, pipeline, experts)
    return merge(flow for part in parts for flow in part(layout))
