"""The events, with their fields. Times are `time.monotonic_ns()`, which all processes of one machine share.

Steps count from 1: the events of step 7 belong to the seventh optimizer step, and a checkpoint of step 7 holds the
state after it. A run that was killed takes some steps again after it resumes; of a step taken twice the later counts.
"""

from __future__ import annotations

from typing import Final, Literal

Phase = Literal["data", "forward", "backward", "reduce", "optimize", "zero", "evaluate", "checkpoint"]

PHASES: Final[tuple[Phase, ...]] = (
    "data",
    "forward",
    "backward",
    "reduce",
    "optimize",
    "zero",
    "evaluate",
    "checkpoint",
)

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    # A rank begins, or begins again: all that follows belongs to this world. `step` steps were already taken.
    # `mesh` is the size of each axis ({"pp": 1, "dp": 4, "cp": 1, "tp": 1}), `place` the rank's coordinate on each.
    # `passed_over` are the checkpoints that could not be trusted as it resumed: [{"step", "cause", "rank", "what"}].
    "start": (
        "rank", "world_size", "local_rank", "node_rank", "host", "pid", "device", "threads", "step", "unix_ns",
        "mono_ns", "mesh", "place", "passed_over",
    ),
    # A phase of a step ran. `micro` numbers the micro-batch, from 0.
    "span": ("step", "phase", "micro", "start_ns", "end_ns"),
    # A collective ran. `axis` names the mesh axis ("world" is all of it), `seq` counts the rank's collectives from 0,
    # in the order in which they began. `wait_ns` is how long the rank's own thread was blocked: less than end - start
    # where it went on computing. `payload_bytes`: of the tensor that is whole before or after (comm/axis.py says for
    # each).
    "collective": ("step", "op", "axis", "payload_bytes", "seq", "start_ns", "end_ns", "wait_ns"),
    # A step is done. `loss` is this rank's own mean, `loss_mean` that of all ranks (before the update);
    # `grad_norm_local` is of this rank's own gradient (null where it is reduced as it comes), `grad_norm` of the
    # reduced one, before clipping; `tokens_per_s` counts all ranks; `memory_bytes` is the peak so far; `mfu` and
    # `loss_scale` may be null.
    "step": (
        "step", "loss", "loss_mean", "grad_norm_local", "grad_norm", "learning_rate", "tokens",
        "tokens_per_s", "mfu", "memory_bytes", "loss_scale", "skipped", "sample_ids", "end_ns",
    ),
    # What a rank holds, in bytes: parameters, gradients and optimizer state as they lie between steps; activations at
    # their peak within step `step`: what autograd keeps for the backward pass, parameters and token ids left out.
    "memory": ("step", "parameters", "gradients", "optimizer", "activations"),
    # Held-out text was scored after `step` steps, over all ranks (rank 0 alone says it). `bits_per_byte` may be null:
    # what classifies scores no bytes.
    "eval": ("step", "loss", "perplexity", "bits_per_byte", "tokens"),
    # Text was sampled after `step` steps (rank 0 alone).
    "sample": ("step", "prompt", "text"),
    # A checkpoint: `blocked_ns` is how long the step loop was blocked, `payload_bytes` this rank's part.
    "checkpoint": ("step", "payload_bytes", "blocked_ns"),
    # A checkpoint is whole on disk (rank 0 alone).
    "commit": ("step", "payload_bytes", "write_ns"),
    # Something went wrong. `type` is the error's class, `message` and `hint` are words for people, which no program
    # reads; `facts` are what is known of it (core/facts.py), of which those are left out that do not apply.
    "error": ("step", "phase", "type", "message", "hint", "facts", "unix_ns"),
    # The rank's last word. `status` is "completed", "interrupted" or "failed".
    "end": ("step", "status"),
}  # fmt: skip
"""The fields of each event besides `event` itself, in the order in which they are written."""

LAUNCHER_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    # A `frog run` began. `nodes`: [{"node", "host", "address"}]; `network`: what was asked of their links, or null.
    "launch": ("pid", "nodes", "ranks_per_node", "program", "restarts", "network"),
    # A node's agent started its ranks. `attempt` counts the worlds of this launch from 0. `node` is the pretended
    # machine; `node_rank` the number that it got in this world.
    "world": ("attempt", "node", "node_rank", "ranks", "world_size", "master_addr", "master_port", "pids"),
    # A rank failed, as its agent saw it. `code` is negative if a signal killed it. `error` is what it left of its
    # error, null if nothing: {"type", "message", "hint", "facts", "unix_ns"}, as in its own `error` event.
    "exit": ("attempt", "rank", "node", "node_rank", "pid", "code", "error", "traceback"),
    # A rank was found hanging, and killed. `kind`: "silent" (no heartbeat) or "stuck" (in one collective).
    "hang": ("attempt", "rank", "pid", "kind", "waited_s", "heartbeat"),
    # A node's agent ended, with that exit code; negative if a signal killed it.
    "node": ("node", "host", "code"),
    # A node that had gone was started again.
    "return": ("node", "host"),
    # `frog run` ends. `network`: what went over the nodes' links, or null.
    "end": ("code", "network"),
}
"""Of `events/launcher.jsonl`: the fields of each event besides `event` and `unix_ns`."""
