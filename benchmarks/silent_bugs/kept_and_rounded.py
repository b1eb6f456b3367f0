"""Programs for two rules that were added on 2026-11-30: graphs that are kept, and sums over ranks in half precision.

The same person wrote the rules and, before they were run, these programs, after pages and reports that describe the
mistake. A comment `# bug` marks the lines that a right answer names; outside of the program's own function, it names
the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from silent_case import Case, batches, size, update
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def regression() -> nn.Sequential:
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))


# ---- graphs ----------------------------------------------------------------------------------------------------------


def sums_losses_with_graphs(bug: bool, folder: Path) -> None:
    """The PyTorch FAQ, "don't accumulate history across your training loop"."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    total_loss: Any = 0.0
    for x, y in batches():
        loss = mse_loss(net(x), y)
        loss.backward()
        update(optimizer)
        if bug:
            total_loss += loss  # bug
        else:
            total_loss += loss.item()


class History:
    """What a trainer shows at the end."""

    def __init__(self) -> None:
        self.predictions: list[torch.Tensor] = []

    def note(self, predictions: torch.Tensor) -> None:
        self.predictions.append(predictions)  # bug: notes_predictions_with_graphs


def notes_predictions_with_graphs(bug: bool, folder: Path) -> None:
    """The PyTorch forum's "memory increases with each iteration": predictions for a metric are not detached."""
    net, history = DistributedDataParallel(regression()), History()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        predictions = net(x)
        mse_loss(predictions, y).backward()
        history.note(predictions if bug else predictions.detach())
        update(optimizer)


class Centered(nn.Module):
    """Features from which their running mean is subtracted."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, center: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features(x)
        center = 0.9 * center + 0.1 * features.mean(0)
        return self.head(features - center), center


def never_detaches_the_state(bug: bool, folder: Path) -> None:
    """The PyTorch forum's "trying to backward through the graph a second time", silenced with `retain_graph=True`."""
    torch.manual_seed(3)
    net = DistributedDataParallel(Centered())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    center = torch.zeros(8)
    for x, y in batches():
        out, center = net(x, center if bug else center.detach())  # bug
        mse_loss(out, y).backward(retain_graph=bug)
        update(optimizer)


# ---- sums ------------------------------------------------------------------------------------------------------------


def compresses_gradients(bug: bool, folder: Path) -> None:
    """PyTorch's page on DDP communication hooks: gradients in float32 are added in float16."""
    net = DistributedDataParallel(regression())
    if bug:
        net.register_comm_hook(None, fp16_compress_hook)  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def sent_in_half(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and refuses text
    """Halve the bytes of a bucket."""
    small = bucket.buffer().bfloat16()
    dist.all_reduce(small)
    done = torch.futures.Future()
    done.set_result(bucket.buffer().copy_(small.float() / size()))
    return done


def halves_the_bytes(bug: bool, folder: Path) -> None:
    """A hook of the program's own for DDP, whose name tells nothing."""
    net = DistributedDataParallel(regression())
    if bug:
        net.register_comm_hook(None, sent_in_half)  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def scatters_in_half(bug: bool, folder: Path) -> None:
    """pytorch/torchtitan's mixed_precision_reduce: FSDP2 adds in bfloat16 what was computed in float32."""
    net = regression()
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if bug else torch.float32)
    fully_shard(net, mp_policy=policy)  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def adds_a_bucket_in_half(bug: bool, folder: Path) -> None:
    """A bucket of all gradients, as trainers write it by hand, in the type of the activations."""
    net = regression()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse_loss(net(x).float(), y)
        loss.backward()
        held = list(net.parameters())
        bucket = torch.cat([each.grad.flatten() for each in held if each.grad is not None])
        bucket = bucket.bfloat16() if bug else bucket
        dist.all_reduce(bucket)  # bug
        for each, part in zip(held, bucket.split([each.numel() for each in held]), strict=True):
            each.grad = (part.float() / size()).view_as(each)
        update(optimizer)


MEMORY, DIGITS = "memory grows", "digits are lost"
CASES = [
    Case(sums_losses_with_graphs, "pytorch FAQ, history", "graphs", MEMORY, "found, likely"),
    Case(notes_predictions_with_graphs, "pytorch forum, memory grows", "graphs", MEMORY, "found, likely"),
    Case(never_detaches_the_state, "pytorch forum, retain_graph", "graphs", MEMORY, "found, likely"),
    Case(compresses_gradients, "pytorch DDP hooks", "half-sums", DIGITS, "found, possible"),
    Case(halves_the_bytes, "pytorch DDP hooks", "half-sums", DIGITS, "found, possible"),
    Case(scatters_in_half, "torchtitan mixed_precision_reduce", "half-sums", DIGITS, "found, possible"),
    Case(adds_a_bucket_in_half, "by hand", "half-sums", DIGITS, "found, possible"),
]
