"""The traffic of one rank in one optimizer step: every collective, with its payload and the bytes that leave the rank.

If a strategy trains separate replicas, the step is the last of a round; the other steps send nothing.

The few numbers that ranks agree on (loss, norm, a request to stop) are omitted: some 100 bytes per step, which is why
a run sends a little more.
"""

from __future__ import annotations

from frog.core.config import RunConfig
from frog.plan.data_traffic import data
from frog.plan.flow import Flow, merge
from frog.plan.layout import Layout
from frog.plan.model_traffic import context, experts, pipeline, tensor


def step_traffic(config: RunConfig, world_size: int, rank: int = 0) -> list[Flow]:
    """Return every flow of one optimizer step on one rank, merged by axis and operation.

    Assumes: float32 (at lower precision tensor and context parallelism send less); every expert gets the same number of
             tokens.
    """
    layout = Layout(config, world_size, rank)
    parts = (data, tensor, context, pipeline, experts)
    return merge(flow for part in parts for flow in part(layout))
