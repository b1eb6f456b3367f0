"""`frog plan RUN.toml` on a machine that `frog plan calibrate` measured. Imports happen when the command runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frog.core.config import RunConfig
    from frog.launch.nodes import Nodes
    from frog.plan.estimate.hardware import Cluster
    from frog.plan.links import SlowNetwork
    from frog.plan.machine.step import PhaseTime


def read_network(text: str, nodes: Nodes | int | None) -> SlowNetwork:
    """Return the simulated network between simulated nodes, from the options of `frog run`.

    Raises:  UsageError if the text is not a network, or if it is not stated how many ranks each of several nodes has.
    """
    from frog.core.errors import UsageError
    from frog.launch.network import parse_network
    from frog.launch.nodes import Nodes
    from frog.plan.links import SlowNetwork, payload_rate

    link = parse_network(text)
    if not isinstance(nodes, Nodes) or not nodes.several:
        raise UsageError("--network needs several nodes with a number of ranks", "--nodes 2x1")
    if link.loss:
        raise UsageError("--network: the time that lost frames cost is not predicted", "omit loss=…")
    ranks = tuple(node for node in range(nodes.most) for _ in range(nodes.ranks))
    return SlowNetwork(ranks, link.delay_s, payload_rate(link.rate_bits_per_s, link.mtu))


def plan_on_machine(
    config: RunConfig, cluster: Cluster, num_ranks: int, network: SlowNetwork | None = None, *, as_json: bool
) -> str:
    """Return the plan of a run on a measured machine, with a simulated slow network between nodes if there is one.

    Raises:  ConfigError if the machine's costs do not cover the run.
    """
    from frog.core.units import count, format_count, format_seconds
    from frog.plan.machine.measured import prediction_lines
    from frog.plan.machine.step import predict_step, step_time

    assert cluster.machine is not None
    phases = predict_step(config, num_ranks, cluster.machine, network)
    step_s = step_time(phases)
    if as_json:
        return json.dumps({"num_ranks": num_ranks, "step_s": step_s, "phases": _as_dict(phases)}, indent=2) + "\n"
    tokens = config.train.global_batch_size * config.data.sequence_length
    lines = [
        f"{format_count(config.model.num_parameters())} parameters on {count(num_ranks, 'rank')} of a machine "
        f"with {cluster.machine.cores:g} cores",
        *([] if network is None else [str(network)]),
        cluster.source,
        "",
        *prediction_lines(phases),
        "",
        f"tokens per second {tokens / step_s:,.0f}",
        f"{config.train.steps} steps take {format_seconds(config.train.steps * step_s)}, "
        "without loading data, evaluations and checkpoints",
    ]
    return "\n".join(lines) + "\n"


def compare_with_run(name: str, cluster: Cluster) -> str:
    """Return prediction and measurement of an existing run, by phase.

    Raises:  UsageError if it has no training steps; ConfigError if the machine's costs do not cover it.
    """
    from frog.core.config import from_dict
    from frog.core.errors import UsageError
    from frog.core.runs.folder import find_run
    from frog.core.runs.history import read_history
    from frog.core.units import count
    from frog.plan.machine.measured import compare_phases, comparison_lines

    assert cluster.machine is not None
    folder = find_run(name)
    run, history = folder.read_run_json(), read_history(folder)
    if run.program is not None or history.last_segment is None:
        raise UsageError(f"{folder.path}: has no training steps of Frog to compare with", "name a run of frog train")
    world_size = history.segments[history.last_segment].world_size
    rows = compare_phases(from_dict(run.config), world_size, cluster.machine, history)
    lines = [f"{folder.path}, {count(world_size, 'rank')}", cluster.source, "", *comparison_lines(rows)]
    return "\n".join(lines) + "\n"


def _as_dict(phases: dict[str, PhaseTime]) -> dict[str, dict[str, float]]:
    return {name: {**vars(phase), "total_s": phase.total_s} for name, phase in phases.items()}
