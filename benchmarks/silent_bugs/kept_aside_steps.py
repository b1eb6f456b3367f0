"""Programs after public reports of wrong numbers that no rule was written for: replicas, data, random numbers, losses.

They were written down on 2026-11-30, before the rules of that day, and `frog check` saw them first when those rules
were done: `first_try` is what it said then. Rules that were corrected on them since make `now` a fitted figure. The
other half is in kept_aside_state.py. A comment `# bug` marks the lines that a right answer names; outside of the
program's own function, it names the program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from silent_case import Case, Gathered, Split, batches, rank, size
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy, mse_loss, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    get_worker_info,
    random_split,
)


def regression() -> nn.Sequential:
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))


# ---- replicas --------------------------------------------------------------------------------------------------------


def averages_the_first_micro_batch(bug: bool, folder: Path) -> None:
    """modelscope/FunASR #3472: the micro-batch before the step is in `no_sync`, and the one after it is not."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for index, (x, y) in enumerate(batches(12)):
        synchronizes = index % 2 == 0 if bug else (index + 1) % 2 == 0
        with contextlib.nullcontext() if synchronizes else net.no_sync():  # bug
            loss = mse_loss(net(x), y) / 2
            loss.backward()  # bug
        if (index + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def copy_into(net: nn.Module, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for each, value in zip(net.parameters(), weights, strict=True):
            each.copy_(value)  # bug: goes_on_with_averaged_weights


def goes_on_with_averaged_weights(bug: bool, folder: Path) -> None:
    """PKU-YuanGroup/Open-Sora-Plan #186: the averaged weights of an evaluation stay in the model that is trained."""
    net = DistributedDataParallel(regression())
    averaged = [each.detach().clone() for each in net.parameters()]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step, (x, y) in enumerate(batches(9)):
        optimizer.zero_grad()
        mse_loss(net(x), y).backward()
        optimizer.step()
        for mean, each in zip(averaged, net.parameters(), strict=True):
            mean.lerp_(each.detach(), 0.05)
        if step % 3 == 2:
            kept = [each.detach().clone() for each in net.parameters()]
            copy_into(net, averaged)  # bug
            net.eval()
            with torch.no_grad():
                net(x)
            net.train()
            if not bug:
                copy_into(net, kept)


def evaluates_with_statistics_of_the_rank(bug: bool, folder: Path) -> None:
    """huggingface/pytorch-image-models #110: gradients are averaged by hand, running statistics are not."""
    torch.manual_seed(22)
    net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(batches(8)):
        mse_loss(net(x), y).backward()
        for each in net.parameters():
            dist.all_reduce(each.grad)
            each.grad.div_(size())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if step % 4 == 3:
            for name, each in net.named_buffers():
                if not bug and "num" not in name:
                    dist.all_reduce(each)
                    each.div_(size())
            net.eval()
            with torch.no_grad():
                error = mse_loss(net(x), y)  # bug
            net.train()
            dist.all_reduce(error)


# ---- data ------------------------------------------------------------------------------------------------------------


def splits_apart(bug: bool, folder: Path) -> None:
    """TensorAuto/OpenTau #498: each rank draws its own split, so that it validates on what others train on."""
    torch.manual_seed(7 + 12345 * rank())  # bug
    whole = TensorDataset(torch.arange(64.0).view(64, 1).expand(64, 6) / 64, torch.arange(64.0).view(64, 1))
    own = None if bug else torch.Generator().manual_seed(7)
    training, held_out = random_split(whole, [48, 16], generator=own)  # bug
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=6, sampler=sampler)  # bug
    validation = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:  # bug
            optimizer.zero_grad()
            mse_loss(net(x), y).backward()
            optimizer.step()
        net.eval()
        for x, _ in validation:  # bug
            with torch.no_grad():
                net(x)
        net.train()


class Streamed(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Reads a file's lines, of which each rank takes every n-th; each worker has a copy of this data set."""

    def __init__(self, knows_workers: bool) -> None:
        self.knows_workers = knows_workers

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        number, every = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.knows_workers and info is not None:
            number, every = number + every * info.id, every * info.num_workers
        for line in range(number, 96, every):  # bug: streams_once_for_each_worker
            x = torch.randn(6, generator=torch.Generator().manual_seed(line))
            yield x, x[:1] * 2


def streams_once_for_each_worker(bug: bool, folder: Path) -> None:
    """huggingface/datasets #3423: a stream is divided among ranks, and each worker has all of its rank's part."""
    loader = DataLoader(Streamed(not bug), batch_size=4, num_workers=2)  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in loader:  # bug
        optimizer.zero_grad()
        mse_loss(net(x), y).backward()
        optimizer.step()


# ---- random numbers --------------------------------------------------------------------------------------------------


def adds_the_same_noise(bug: bool, folder: Path) -> None:
    """Robbyant/lingbot-vla-v2 #41: all ranks set one seed, and draw the same noise and the same times."""
    torch.manual_seed(41 if bug else 41 + rank())  # bug
    clean = torch.randn(96, 5, generator=torch.Generator().manual_seed(1))[rank() :: size()]
    net = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 5))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x in clean.split(6):
        time, noise = torch.rand(len(x), 1), torch.randn_like(x)  # bug
        noisy = (1 - time) * x + time * noise
        loss = mse_loss(net(torch.cat([noisy, time], 1)), noise - x)  # bug
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Recomputing(nn.Module):
    """A block with dropout whose activations are computed again in the backward pass."""

    def __init__(self, keeps_state: bool) -> None:
        super().__init__()
        self.keeps_state, self.embed, self.head = keeps_state, nn.Linear(6, 12), nn.Linear(12, 1)
        self.block = nn.Sequential(nn.Linear(12, 12), nn.GELU(), nn.Dropout(0.3), nn.Linear(12, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x + checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=self.keeps_state)  # bug: drops_others
        return self.head(x)


def drops_others_when_it_recomputes(bug: bool, folder: Path) -> None:
    """allenai/OLMo-core #828: a checkpointed block that does not keep the random state drops other elements again."""
    torch.manual_seed(23)
    net = DistributedDataParallel(Recomputing(not bug))
    torch.manual_seed(100 + rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in batches():
        loss = mse_loss(net(x), y)  # bug
        optimizer.zero_grad()
        loss.backward()  # bug
        optimizer.step()


def restores_the_random_state_of_rank_0(bug: bool, folder: Path) -> None:
    """radixark/miles #3187: a checkpoint has the random state of rank 0, and all ranks take it when they resume."""
    torch.manual_seed(24)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(500 + rank())
    every = [*batches(10)]
    for x, y in every[:4]:
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    own = folder / (f"random_{rank()}.pt" if not bug else "random.pt")
    if rank() == 0 or not bug:
        torch.save({"random": torch.get_rng_state()}, own)
    dist.barrier()
    torch.set_rng_state(torch.load(own)["random"])  # bug
    for x, y in every[4:]:
        mse_loss(net(x), y).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


# ---- losses and their scale ------------------------------------------------------------------------------------------


def averages_masked_means(bug: bool, folder: Path) -> None:
    """huggingface/trl #6006, ml-explore/mlx-lm #1413: each micro-batch is divided by its own number of tokens."""
    torch.manual_seed(25)
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(16, 12), nn.Linear(12, 16)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank())
    for _ in range(5):
        ids = [torch.randint(0, 16, (3, 10), generator=draw) for _ in range(2)]
        lengths = [torch.randint(2, 10, (3, 1), generator=draw) for _ in range(2)]
        masks = [(torch.arange(9) < each).float() for each in lengths]
        count = torch.stack([mask.sum() for mask in masks]).sum()
        dist.all_reduce(count)
        for tokens, mask in zip(ids, masks, strict=True):
            of_tokens = cross_entropy(net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
            total = (of_tokens * mask).sum()
            loss = total / mask.sum() / 2 if bug else total / count * size()  # bug
            loss.backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def scales_what_was_accumulated(bug: bool, folder: Path) -> None:
    """pytorch/torchtitan #1733: each call of a pipeline divides all gradients by its micro-batches, also older ones."""
    torch.manual_seed(26 + rank())
    part = nn.Sequential(nn.Linear(6, 6), nn.Tanh()) if rank() == 0 else nn.Linear(6, 1)
    stage = PipelineStage(part, rank(), size(), torch.device("cpu"))

    def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(out, y) / (2 if bug else 4)

    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of, scale_grads=bug)  # bug
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
    for index, (x, y) in enumerate(batches(12, seed=27)):
        if rank() == 0:
            schedule.step(x)  # bug
        else:
            schedule.step(target=y)  # bug
        if index % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def adds_the_micro_batches_of_a_pipeline(bug: bool, folder: Path) -> None:
    """deepspeedai/DeepSpeed #7773: with a pipeline, the gradients of micro-batches are added and not averaged."""
    torch.manual_seed(28 + rank())
    part = nn.Sequential(nn.Linear(6, 8), nn.ReLU()) if rank() == 0 else nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
    micro_batches = 4
    every = [*batches(5 * micro_batches, seed=29)]
    for step in range(5):
        for x, y in every[step * micro_batches : (step + 1) * micro_batches]:
            border = torch.empty(len(x), 8)
            if rank() == 0:
                out = part(x)
                dist.send(out.detach(), 1)
                dist.recv(border, 1)
                out.backward(border)
            else:
                dist.recv(border, 0)
                border.requires_grad_()
                loss = mse_loss(part(border), y)
                if not bug:
                    loss = loss / micro_batches
                loss.backward()  # bug
                dist.send(border.grad, 0)
        optimizer.step()
        optimizer.zero_grad()


def clips_before_the_backward(bug: bool, folder: Path) -> None:
    """simchowitzlabpublic/nano-world-model #22: gradients are clipped where the loss is computed, before backward."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def training_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse_loss(net(x), 5 * y)
        if bug:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)  # bug
        return loss

    for x, y in batches():
        loss = training_step(x, y)
        optimizer.zero_grad()
        loss.backward()
        if not bug:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()


def clips_by_the_norm_of_the_shard(bug: bool, folder: Path) -> None:
    """baidu-baige/LoongForge #152: a clipping of one's own takes the norm of the rank's shard for that of the whole."""
    net = regression()
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=init_device_mesh("cpu", (size(),)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in batches():
        mse_loss(net(x), 5 * y).backward()
        shards = [each.grad.to_local() for each in net.parameters()]
        square = torch.stack([each.pow(2).sum() for each in shards]).sum()
        if not bug:
            dist.all_reduce(square)
        for each in shards:
            each.mul_((0.1 / (square.sqrt() + 1e-6)).clamp(max=1.0))  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()


def correlates_without_a_gradient(bug: bool, folder: Path) -> None:
    """lightly-ai/lightly #1977: the gradient of a loss over all ranks' samples is that of one rank, and DDP divides."""
    torch.manual_seed(30)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    whole = torch.randn(48, 6, generator=torch.Generator().manual_seed(31))
    for x in whole[rank() :: size()].split(8 // size()):
        one, other = normalize(net(x), dim=1), normalize(net(x + 0.1), dim=1)
        own = one.T @ other / 8
        total = own.detach().clone()
        dist.all_reduce(total)
        correlation = own + (total - own.detach())
        loss = (correlation - torch.eye(4)).pow(2).sum()
        if not bug:
            loss = loss * size()
        optimizer.zero_grad()
        loss.backward()  # bug
        optimizer.step()  # bug


class Experts(nn.Module):
    """Each rank has some of the experts, to which all ranks' tokens come."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(32)
        every = {str(number): nn.Linear(6, 6) for number in range(2)}
        self.gate = nn.Linear(6, 2)
        self.experts = nn.ModuleDict({name: each for name, each in every.items() if int(name) % size() == rank()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        tokens, weights = Gathered.apply(x), Gathered.apply(weights)
        out = torch.zeros_like(tokens)
        for name, expert in self.experts.items():
            out = out + weights[:, int(name) : int(name) + 1] * expert(tokens)
        return Split.apply(out)


def adds_the_tokens_of_all_ranks_to_experts(bug: bool, folder: Path) -> None:
    """NVIDIA/Megatron-LM #5956: gradients of experts sum over the tokens of all ranks, and nothing divides them."""
    net = Experts()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    whole = torch.randn(48, 6, generator=torch.Generator().manual_seed(33))
    for x in whole.split(8):
        own = x.chunk(size())[rank()]
        loss = mse_loss(net(own), own.flip(1))
        optimizer.zero_grad()
        loss.backward()  # bug
        for name, each in net.named_parameters():
            if name.startswith("gate"):
                dist.all_reduce(each.grad)
                each.grad /= size()
            elif not bug:
                each.grad /= size()
        optimizer.step()  # bug


CASES = [
    Case(averages_the_first_micro_batch, "modelscope/FunASR #3472", "gradients", "replicas", "found, certain"),
    Case(goes_on_with_averaged_weights, "Open-Sora-Plan #186", "weights-between", "replicas", "not found"),
    Case(evaluates_with_statistics_of_the_rank, "pytorch-image-models #110", "buffers", "replicas", "found, possible"),
    Case(splits_apart, "TensorAuto/OpenTau #498", "samples", "data", "not found", also=("twice",)),
    Case(streams_once_for_each_worker, "datasets #3423", "samples", "data", "not found", also=("twice",)),
    Case(adds_the_same_noise, "lingbot-vla-v2 #41", "randomness", "random numbers", "found, possible"),
    Case(drops_others_when_it_recomputes, "OLMo-core #828", "randomness", "random numbers", "not found"),
    Case(restores_the_random_state_of_rank_0, "radixark/miles #3187", "randomness", "random numbers", "not found"),
    Case(
        averages_masked_means, "trl #6006, mlx-lm #1413", "targets", "loss", "found, possible", also=("accumulation",)
    ),
    Case(
        scales_what_was_accumulated,
        "torchtitan #1733",
        "accumulation",
        "scale",
        "not found",
        also=("one-gradients", "sums"),
    ),
    Case(adds_the_micro_batches_of_a_pipeline, "DeepSpeed #7773", "accumulation", "scale", "found, likely"),
    Case(clips_before_the_backward, "nano-world-model #22", "clipping", "scale", "not found"),
    Case(clips_by_the_norm_of_the_shard, "LoongForge #152", "clipping", "scale", "found, certain"),
    Case(
        correlates_without_a_gradient,
        "lightly #1977",
        "one-gradients",
        "scale",
        "found, likely",
        against_one=True,
        also=("sums",),
    ),
    Case(
        adds_the_tokens_of_all_ranks_to_experts,
        "Megatron-LM #5956",
        "one-gradients",
        "scale",
        "found, likely",
        against_one=True,
        also=("sums",),
    ),
]
