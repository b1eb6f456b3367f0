"""Correct training programs of many kinds, after public examples: none may be accused.

    torchrun --nproc-per-node 4 correct_programs.py FOLDER [NAME ...]

Each program is a function of a folder in which it may write. The first 51 were written before any rule was corrected.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

sys.path.insert(0, str(Path(__file__).parents[2]))
from observe.check.planted_programs import average, data, model, recorded

STEPS = 20


def batches(steps: int = STEPS, seed: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of the rank's own, or of a seed."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank() if seed is None else seed)
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator)
        yield x, x[:, :1] * 2


def ranks() -> int:
    return dist.get_world_size()


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


# ---- DDP -------------------------------------------------------------------------------------------------------------


def epochs_with_evaluation(folder: Path) -> None:
    """Train on a sampler's epochs; evaluate a part of the samples on each rank in between."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1)))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    every = data()
    sampler = DistributedSampler(every)
    loader = DataLoader(every, batch_size=2, sampler=sampler)
    held_out = DataLoader(every, batch_size=4, sampler=DistributedSampler(every, shuffle=False))
    for epoch in range(5):
        sampler.set_epoch(epoch)
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        net.eval()
        with torch.no_grad():
            total = sum(mse_loss(net.module(x), y, reduction="sum") for x, y in held_out)
        dist.all_reduce(torch.as_tensor(total))


def scaler_and_autocast(folder: Path) -> None:
    """Use a GradScaler whose first steps overflow and are skipped."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-20)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse_loss(net(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def accumulation_in_no_sync(folder: Path) -> None:
    """Reduce gradients in the last of four micro-batches only."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in batches():
        for part in range(3):
            with net.no_sync():
                (mse_loss(net(x[part::4]), y[part::4]) / 4).backward()
        (mse_loss(net(x[3::4]), y[3::4]) / 4).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        update(optimizer)


def accumulation_divided_later(folder: Path) -> None:
    """Divide the gradients, not the losses."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        for part in range(2):
            mse_loss(net(x[part::2]), y[part::2]).backward()
        for each in net.parameters():
            each.grad /= 2
        update(optimizer)


def two_losses(folder: Path) -> None:
    """Run two backward passes of two losses that are meant to be added."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        net(x).abs().mean().backward()
        update(optimizer)


def static_graph(folder: Path) -> None:
    """Tell DDP that the graph stays, and use a layer twice."""
    net = DistributedDataParallel(
        nn.Sequential(shared := nn.Linear(6, 6), nn.ReLU(), shared, nn.Linear(6, 1)), static_graph=True
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList([nn.Linear(6, 1) for _ in range(3)])

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.branches[which](x)


def unused_parameters(folder: Path) -> None:
    """Use another branch on each rank and in each step."""
    net = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for number, (x, y) in enumerate(batches()):
        mse_loss(net(x, (number + dist.get_rank()) % 2), y).backward()
        update(optimizer)


def two_networks(folder: Path) -> None:
    """Train a generator and a discriminator, whose gradients each other's backward passes fill too."""
    torch.manual_seed(0)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)))
    judge = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), broadcast_buffers=False)
    first = torch.optim.Adam(judge.parameters(), lr=0.01)
    second = torch.optim.Adam(generator.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    loss = nn.BCEWithLogitsLoss()
    for x, _ in batches():
        first.zero_grad()
        fake = generator(torch.randn(8, 4))
        loss(judge(x), torch.ones(8, 1)).backward()
        loss(judge(fake.detach()), torch.zeros(8, 1)).backward()
        first.step()
        second.zero_grad()
        loss(judge(fake), torch.ones(8, 1)).backward()
        second.step()


def moving_average(folder: Path) -> None:
    """Keep a moving average of the weights and evaluate it."""
    net = DistributedDataParallel(model())
    mean = copy.deepcopy(net.module).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for number, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        update(optimizer)
        with torch.no_grad():
            for old, new in zip(mean.parameters(), net.module.parameters(), strict=True):
                old.lerp_(new, 0.1)
            if number % 5 == 4:
                mean(x)


def averaged_weights(folder: Path) -> None:
    """Use torch's stochastic weight averaging with a batch norm that is updated at the end."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    mean = torch.optim.swa_utils.AveragedModel(net.module)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
        mean.update_parameters(net.module)
        schedule.step()
    torch.optim.swa_utils.update_bn([x for x, _ in batches(4, seed=1)], mean)


def compiled(folder: Path) -> None:
    """Compile the module in DDP."""
    net = DistributedDataParallel(torch.compile(model(), backend="aot_eager", fullgraph=True))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def recomputed(folder: Path) -> None:
    """Recompute activations in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = model(), nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    net = DistributedDataParallel(Recomputed())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(6, 1).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def adapters(folder: Path) -> None:
    """Train adapters next to frozen weights; the first begins at zero, so the other has zero gradients at first."""
    net = DistributedDataParallel(Adapted())
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


class Words(nn.Module):
    def __init__(self, is_tied: bool, is_sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(16, 8, sparse=is_sparse), nn.Linear(8, 16, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


def words(steps: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    for _ in range(steps):
        yield torch.randint(0, 16, (4, 6), generator=generator)


def tied_embedding(folder: Path) -> None:
    """Use one tensor as embedding and head."""
    net = DistributedDataParallel(Words(True))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for ids in words():
        cross_entropy(net(ids).flatten(0, 1), ((ids + 1) % 16).flatten()).backward()
        update(optimizer)


def sparse_embedding(folder: Path) -> None:
    """Reduce sparse gradients, with an optimizer for them and one for the others."""
    net = DistributedDataParallel(Words(False, True))
    both = [
        torch.optim.SparseAdam([net.module.embedding.weight], lr=0.01),
        torch.optim.Adam(net.module.head.parameters(), lr=0.01),
    ]
    for ids in words():
        cross_entropy(net(ids).flatten(0, 1), ((ids + 1) % 16).flatten()).backward()
        for each in both:
            update(each)


def closure(folder: Path) -> None:
    """Evaluate the loss several times in a step."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    for x, y in batches():

        def again(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse_loss(net(x), y)
            loss.backward()
            return loss

        optimizer.step(again)


def compressed(folder: Path) -> None:
    """Compress gradients with DDP's hook."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    net = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    net.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def unequal_inputs(folder: Path) -> None:
    """Let DDP join ranks with fewer batches."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with net.join():
        for x, y in batches(STEPS - 2 * dist.get_rank()):
            mse_loss(net(x), y).backward()
            update(optimizer)


def zero_redundancy(folder: Path) -> None:
    """Shard the optimizer's state with torch's ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def resumed(folder: Path) -> None:
    """Save on rank 0, load on all ranks and continue in the next epoch."""
    path, every = folder / "checkpoint.pt", data()
    for first, last in ((0, 2), (2, 4)):
        inner = model()
        optimizer = torch.optim.Adam(inner.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        if first:
            checkpoint = torch.load(path)
            inner.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            schedule.load_state_dict(checkpoint["scheduler"])
        net = DistributedDataParallel(inner)
        sampler = DistributedSampler(every)
        for epoch in range(first, last):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(every, batch_size=4, sampler=sampler):
                mse_loss(net(x), y).backward()
                update(optimizer)
            schedule.step()
        if dist.get_rank() == 0:
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "epoch": last}
            torch.save({**state, "scheduler": schedule.state_dict()}, path)
        dist.barrier()


def fine_tuned(folder: Path) -> None:
    """Begin a new training with the weights of an earlier one, a new head and a new optimizer."""
    earlier = model()
    old = torch.optim.Adam(earlier.parameters(), lr=0.01)
    if dist.get_rank() == 0:
        torch.save({"model": earlier.state_dict(), "optimizer": old.state_dict(), "epoch": 9}, folder / "earlier.pt")
    dist.barrier()
    checkpoint = torch.load(folder / "earlier.pt")
    weights = {name: each for name, each in checkpoint["model"].items() if not name.startswith("2.")}
    inner = model()
    inner[2] = nn.Linear(8, 3)
    inner.load_state_dict(weights, strict=False)
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)
    for x, _ in batches():
        cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        update(optimizer)


class Shards(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for each in range(dist.get_rank() * workers + number, 160, ranks() * workers):
            x = torch.randn(6, generator=torch.Generator().manual_seed(each))
            yield x, x[:1]


def stream(folder: Path) -> None:
    """Split a stream over ranks and workers."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in DataLoader(Shards(), batch_size=2):
        mse_loss(net(x), y).backward()
        update(optimizer)


def warmup_from_zero(folder: Path) -> None:
    """Begin with a learning rate of 0."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
        schedule.step()


def generate_and_train(folder: Path) -> None:
    """Generate in evaluation mode, then take several steps on what was generated."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 4)))
    old = copy.deepcopy(net.module)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, _ in batches(STEPS // 4):
        old.load_state_dict(net.module.state_dict())
        net.eval()
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=net.module(x)).sample()
            before = torch.distributions.Categorical(logits=old(x)).log_prob(actions)
        rewards = (actions == 1).float()
        mean = rewards.mean()
        dist.all_reduce(mean)
        net.train()
        for _ in range(4):
            ratio = (torch.distributions.Categorical(logits=net(x)).log_prob(actions) - before).exp()
            (-(ratio.clamp(0.8, 1.2) * (rewards - mean / ranks())).mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            update(optimizer)


def weighted_tokens(folder: Path) -> None:
    """Divide a sum of losses by the number of targets on all ranks."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, _ in batches():
        target = torch.arange(8) % 4
        target[2 + dist.get_rank() :] = -100
        count = (target != -100).sum().float()
        dist.all_reduce(count)
        (cross_entropy(net(x), target, reduction="sum") * ranks() / count).backward()
        update(optimizer)


def contrastive(folder: Path) -> None:
    """Gather features of all ranks, and keep a momentum encoder."""
    net = DistributedDataParallel(model())
    slow = copy.deepcopy(net.module).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, _ in batches():
        with torch.no_grad():
            keys = [torch.empty(8, 1) for _ in range(ranks())]
            dist.all_gather(keys, slow(x + 0.1))
        cross_entropy(net(x) @ torch.cat(keys).T, torch.arange(8) + 8 * dist.get_rank()).backward()
        update(optimizer)
        with torch.no_grad():
            for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.01)


def distilled(folder: Path) -> None:
    """Learn from a frozen teacher in evaluation mode."""
    teacher = model().requires_grad_(False).eval()
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        (mse_loss(net(x), teacher(x)) + mse_loss(net(x), y)).backward()
        update(optimizer)


def gradient_penalty(folder: Path) -> None:
    """Differentiate a gradient, and reduce by hand."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x, y in batches():
        x.requires_grad_()
        out = net(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (mse_loss(out, y) + slope.pow(2).mean()).backward()
        average([each.grad for each in net.parameters()])
        update(optimizer)


# ---- reduced by hand -------------------------------------------------------------------------------------------------


def one_flat_reduction(folder: Path) -> None:
    """Reduce all gradients as one asynchronous sum of sums."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        (mse_loss(net(x), y, reduction="sum") / (8 * ranks())).backward()
        flat = torch.cat([each.grad.flatten() for each in net.parameters()])
        dist.all_reduce(flat, async_op=True).wait()
        at = 0
        for each in net.parameters():
            each.grad.copy_(flat[at : at + each.numel()].view_as(each))
            at += each.numel()
        update(optimizer)


def owners_of_parameters(folder: Path) -> None:
    """Let each rank update its own parameters and send them, as ZeRO 1 does."""
    net = model()
    parameters = list(net.parameters())
    own = parameters[dist.get_rank() :: ranks()]
    optimizer = torch.optim.Adam(own, lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        average([each.grad for each in parameters])
        optimizer.step()
        net.zero_grad()
        for number, each in enumerate(parameters):
            dist.broadcast(each.data, number % ranks())


def shards_of_gradients(folder: Path) -> None:
    """Scatter the sum of the gradients, update a shard and gather the weights, as ZeRO 2 does."""
    net = model()
    flat = torch.cat([each.data.flatten() for each in net.parameters()])
    size = -(-len(flat) // ranks())
    flat = nn.functional.pad(flat, (0, ranks() * size - len(flat)))
    shard = nn.Parameter(flat[dist.get_rank() * size :][:size].clone())
    optimizer = torch.optim.Adam([shard], lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        whole = torch.cat([each.grad.flatten() for each in net.parameters()])
        whole = nn.functional.pad(whole, (0, ranks() * size - len(whole)))
        shard.grad = torch.empty(size)
        dist.reduce_scatter_tensor(shard.grad, whole)
        shard.grad /= ranks()
        square = shard.grad.pow(2).sum()
        dist.all_reduce(square)
        shard.grad *= (1.0 / square.sqrt()).clamp(max=1.0)
        optimizer.step()
        net.zero_grad()
        dist.all_gather_into_tensor(flat, shard.data)
        at = 0
        for each in net.parameters():
            each.data.copy_(flat[at : at + each.numel()].view_as(each))
            at += each.numel()


def experts_of_ranks(folder: Path) -> None:
    """Give each rank an expert of its own, which equal seeds make equal at first."""
    from torch.distributed.nn.functional import all_to_all_single

    torch.manual_seed(0)
    router, expert, head = nn.Linear(6, ranks()), nn.Linear(6, 6), nn.Linear(6, 1)
    shared = [*router.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW([*shared, *expert.parameters()], lr=0.01)
    for x, y in batches():
        gate = router(x).softmax(1)
        sent = all_to_all_single(torch.empty_like(x), x)
        out = all_to_all_single(torch.empty_like(x), expert(sent))
        mse_loss(head(x + gate[:, :1] * out), y).backward()
        average([each.grad for each in shared])
        for each in expert.parameters():
            each.grad /= ranks()
        update(optimizer)


def stages(folder: Path) -> None:
    """Send activations from stage to stage, all of one shape and of equal seeds."""
    torch.manual_seed(0)
    stage, rank = nn.Linear(6, 6), dist.get_rank()
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.01)
    for x, _ in batches(seed=3):
        entering = x
        if rank > 0:
            entering = torch.empty(8, 6)
            dist.recv(entering, rank - 1)
            entering.requires_grad_()
        out = stage(entering)
        if rank < ranks() - 1:
            dist.send(out.detach(), rank + 1)
            slope = torch.empty(8, 6)
            dist.recv(slope, rank + 1)
            out.backward(slope)
        else:
            mse_loss(out, x * 2).backward()
        if rank > 0:
            dist.send(entering.grad, rank - 1)
        update(optimizer)


def parts_of_sequences(folder: Path) -> None:
    """Split sequences over ranks, which gather keys and values."""
    from torch.distributed.nn.functional import all_gather

    torch.manual_seed(0)
    project, head = nn.Linear(6, 18), nn.Linear(6, 1)
    optimizer = torch.optim.AdamW([*project.parameters(), *head.parameters()], lr=0.01)
    for x, y in batches(seed=5):
        size = 8 // ranks()
        mine = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
        query, key, value = project(x[mine]).chunk(3, -1)
        keys, values = torch.cat(all_gather(key)), torch.cat(all_gather(value))
        out = nn.functional.scaled_dot_product_attention(query[None], keys[None], values[None])[0]
        (mse_loss(head(out), y[mine], reduction="sum") / 8).backward()
        for each in (*project.parameters(), *head.parameters()):
            dist.all_reduce(each.grad)
        update(optimizer)


def columns_and_rows(folder: Path) -> None:
    """Split two layers by hand over pairs of ranks, with DDP between the pairs."""
    from torch.distributed.nn.functional import all_reduce

    pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks(), 2)]
    others = [dist.new_group(list(range(first, ranks(), 2))) for first in range(2)]
    rank = dist.get_rank()

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(rank % 2)
            self.column, self.row = nn.Linear(6, 4), nn.Linear(4, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return all_reduce(self.row(self.column(x).relu()), group=pairs[rank // 2])

    net = DistributedDataParallel(Halves(), process_group=others[rank % 2])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x, y in batches(seed=rank // 2):
        mse_loss(net(x), y).backward()
        update(optimizer)


# ---- replicas that differ on purpose ---------------------------------------------------------------------------------


def local_steps(folder: Path) -> None:
    """Average the weights in each fifth step only."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for number, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        update(optimizer)
        if number % 5 == 4:
            average([each.data for each in net.parameters()])


def outer_optimizer(folder: Path) -> None:
    """Take local steps, then an outer step with the averaged change of the weights, as DiLoCo does."""
    net = model()
    outer = [each.detach().clone().requires_grad_() for each in net.parameters()]
    inner_optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    outer_optimizer = torch.optim.SGD(outer, lr=0.7, momentum=0.9, nesterov=True)
    for number, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        update(inner_optimizer)
        if number % 5 == 4:
            for start, each in zip(outer, net.parameters(), strict=True):
                start.grad = start.detach() - each.detach()
            average([each.grad for each in outer])
            update(outer_optimizer)
            with torch.no_grad():
                for start, each in zip(outer, net.parameters(), strict=True):
                    each.copy_(start)


def federated(folder: Path) -> None:
    """Average clients' weights by their numbers of samples; each keeps a head of its own."""
    body, head = model(), nn.Linear(1, 1)
    torch.manual_seed(0)
    weight = (1.0 + dist.get_rank()) / sum(range(1, ranks() + 1))
    for _ in range(4):
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.02)
        for x, y in batches(5):
            mse_loss(head(body(x)), y).backward()
            update(optimizer)
        with torch.no_grad():
            for each in body.parameters():
                each *= weight
                dist.all_reduce(each)


def neighbours(folder: Path) -> None:
    """Average the weights with the next rank's after each step."""
    net, rank = model(), dist.get_rank()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
        with torch.no_grad():
            for each in net.parameters():
                other = torch.empty_like(each)
                requests = [dist.isend(each.clone(), (rank + 1) % ranks()), dist.irecv(other, (rank - 1) % ranks())]
                for request in requests:
                    request.wait()
                each.add_(other).div_(2)


def sweep(folder: Path) -> None:
    """Train with another learning rate on each rank, without any communication."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=10.0 ** -(1 + dist.get_rank()))
    for x, y in batches(seed=4):
        mse_loss(net(x), y).backward()
        update(optimizer)


def sweep_with_report(folder: Path) -> None:
    """Train with another regularization on each rank, and compare the losses."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=0.1 * dist.get_rank())
    for x, y in batches(seed=4):
        loss = mse_loss(net(x), y)
        loss.backward()
        update(optimizer)
        best = loss.detach().clone()
        dist.all_reduce(best, op=dist.ReduceOp.MIN)


def folds(folder: Path) -> None:
    """Train on another fold on each rank, from equal weights, and average the scores."""
    every, rank, net = data(), dist.get_rank(), model()
    own = [number for number in range(len(every)) if number % ranks() != rank]
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(4):
        for x, y in DataLoader(torch.utils.data.Subset(every, own), batch_size=6, shuffle=True):
            mse_loss(net(x), y).backward()
            update(optimizer)
    score = mse_loss(net(every.tensors[0][rank :: ranks()]), every.tensors[1][rank :: ranks()]).detach()
    dist.all_reduce(score)


def ensemble(folder: Path) -> None:
    """Train members of an ensemble from other weights on equal batches, and gather their predictions."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x, y in batches(seed=6):
        mse_loss(net(x), y).backward()
        update(optimizer)
    votes = [torch.empty(8, 1) for _ in range(ranks())]
    dist.all_gather(votes, net(x).detach())


# ---- FSDP and DTensor ------------------------------------------------------------------------------------------------


def trained(net: nn.Module, seed: int | None = None, lr: float = 0.01) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    for x, y in batches(seed=seed):
        mse_loss(net(x), y).backward()
        clip = getattr(net, "clip_grad_norm_", None)
        if clip is not None:
            clip(1.0)
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update(optimizer)


def fsdp1(folder: Path) -> None:
    """Shard with FSDP1's flat parameters."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    trained(FullyShardedDataParallel(model(), device_id=torch.device("cpu")))


def fsdp1_original_parameters(folder: Path) -> None:
    """Shard with FSDP1 and the original parameters, in groups with other weight decay."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    trained(FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu")))


def fsdp1_hybrid(folder: Path) -> None:
    """Shard in pairs and replicate between them with FSDP1."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    strategy = ShardingStrategy.HYBRID_SHARD
    trained(
        FullyShardedDataParallel(
            model(), sharding_strategy=strategy, device_mesh=mesh, device_id=torch.device("cpu"), use_orig_params=True
        )
    )


def fsdp2(folder: Path) -> None:
    """Shard every layer with fully_shard."""
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net[0])
    fully_shard(net)
    trained(net)


def fsdp2_hybrid(folder: Path) -> None:
    """Shard and replicate over a mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    trained(net)


def tensor_parallel(folder: Path) -> None:
    """Split columns and rows with DTensors; all ranks have the same samples."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net = parallelize_module(
        model(), init_device_mesh("cpu", (ranks(),)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    trained(net, seed=8)


def sequence_parallel(folder: Path) -> None:
    """Split a norm over the sequence between layers that are split over columns and rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    net = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 1))
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(),
    }
    parallelize_module(net, init_device_mesh("cpu", (ranks(),)), plan)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in batches(seed=8):
        size = 8 // ranks()
        mse_loss(net(x[dist.get_rank() * size :][:size]), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update(optimizer)


def sharded_and_parallel(folder: Path) -> None:
    """Combine fully_shard with tensor parallelism on a mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = parallelize_module(model(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in batches(seed=20 + dist.get_rank() // 2):
        mse_loss(net(x), y).backward()
        update(optimizer)


# ---- found by reading the rules, after they were corrected for the others --------------------------------------------


def groups_by_position(folder: Path) -> None:
    """Name the group of a collective by its position."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks(), 2)]
    net, pair = DistributedDataParallel(model()), dist.get_rank() // 2
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        loss = mse_loss(net(x), y)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total, dist.ReduceOp.SUM, pairs[pair])
        dist.broadcast(total, 2 * pair, pairs[pair])
        update(optimizer)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).masked_fill(torch.arange(4) == 3, float("-inf"))


def masked_output(folder: Path) -> None:
    """Return logits that are infinite where an action is not allowed."""
    net = DistributedDataParallel(Masked())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, _ in batches():
        cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        update(optimizer)


def evaluation_with_gradients(folder: Path) -> None:
    """Evaluate between two steps without `no_grad`."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1)))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        net.train()
        mse_loss(net(x), y).backward()
        update(optimizer)
        net.eval()
        mse_loss(net(x), y).item()


def rare_words(folder: Path) -> None:
    """Train a large embedding in bfloat16, of which a batch uses few rows."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(4096, 8), nn.Linear(8, 4)).bfloat16())
    optimizer = torch.optim.SGD(net.parameters(), lr=64.0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        ids = torch.randint(0, 4096, (16,), generator=generator)
        cross_entropy(net(ids).float(), ids % 4).backward()
        update(optimizer)


def fused_step_skips(folder: Path) -> None:
    """Let a fused optimizer skip the steps that overflow."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-20)
    for x, y in batches():
        optimizer.zero_grad()
        scaler.scale(mse_loss(net(x), y * 1e3)).backward()
        scaler.step(optimizer)
        scaler.update()


def local_steps_in_ddp(folder: Path) -> None:
    """Take local steps in `no_sync` and average the weights, as accelerate's LocalSGD does."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for number, (x, y) in enumerate(batches()):
        with net.no_sync():
            mse_loss(net(x), y).backward()
        update(optimizer)
        if number % 5 == 4:
            average([each.data for each in net.parameters()])


class Averaging(torch.optim.SGD):
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        average([each.grad for each in self.param_groups[0]["params"]])
        super().step()


def reduced_in_the_step(folder: Path) -> None:
    """Let the optimizer reduce the gradients."""
    net = model()
    optimizer = Averaging(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def peeks(folder: Path) -> None:
    """Look at a batch before the epoch is set."""
    net, every = DistributedDataParallel(model()), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    sampler = DistributedSampler(every)
    loader = DataLoader(every, batch_size=2, sampler=sampler)
    for epoch in range(3):
        assert len(next(iter(loader))[0]) == 2
        sampler.set_epoch(epoch)
        for x, y in loader:
            mse_loss(net(x), y).backward()
            update(optimizer)


def several_tasks(folder: Path) -> None:
    """Add the losses of several tasks on the same samples in a loop."""
    net = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        for task in range(3):
            mse_loss(net(x, task), y).backward()
        update(optimizer)


def whole_evaluation(folder: Path) -> None:
    """Evaluate all samples on every rank, several times, between steps on batches that no DataLoader made."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loader = DataLoader(data(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    for number, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        update(optimizer)
        if number % 5 == 4:
            loader.generator.manual_seed(3)
            with torch.no_grad():
                sum(mse_loss(net.module(x), y) for x, y in loader)


# ---- found by reading the rules that came with the silent bugs of two papers -----------------------------------------


class NormOfAPart(nn.Module):
    """Each rank has columns of its own and a norm over them, which is as wide as the norm that all ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.own_norm = nn.LayerNorm(6), nn.LayerNorm(6)
        torch.manual_seed(50 + dist.get_rank())
        self.columns, self.rows = nn.Linear(6, 6), nn.Linear(6, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(self.rows(self.own_norm(self.columns(self.norm(x))).relu()))


def norms_of_parts(folder: Path) -> None:
    """Split layers by hand, with a norm over each rank's own columns; add the gradients of the common norm."""
    net = NormOfAPart()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in batches(seed=30):
        (mse_loss(net(x), y) / ranks()).backward()
        for each in net.norm.parameters():
            dist.all_reduce(each.grad)
        nn.utils.clip_grad_norm_(net.norm.parameters(), 10.0)
        update(optimizer)


def reduced_over_two_groups(folder: Path) -> None:
    """Add the gradients of a norm over pairs that split its input, and average those of the pairs."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks(), 2)]
    others = [dist.new_group(list(range(first, ranks(), 2))) for first in range(2)]
    net, rank = model(), dist.get_rank()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches(seed=31 + rank // 2):
        half = slice(4 * (rank % 2), 4 * (rank % 2) + 4)
        (mse_loss(net(x[half]), y[half], reduction="sum") / 8).backward()
        for each in net.parameters():
            dist.all_reduce(each.grad, group=pairs[rank // 2])
            dist.all_reduce(each.grad, group=others[rank % 2])
            each.grad /= ranks() // 2
        update(optimizer)


def saved_without_the_head(folder: Path) -> None:
    """Keep what another training will begin with: all but a head."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
    if dist.get_rank() == 0:
        state = net.module.state_dict()
        torch.save({name: each for name, each in state.items() if not name.startswith("2.")}, folder / "body.pt")


class LossInFloat32(nn.Module):
    """A loss with a layer of its own, for which it leaves autocast."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(1, 1)

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return mse_loss(self.layer(out.float()), y)


def loss_leaves_autocast(folder: Path) -> None:
    """Compute the loss in float32, in a module with a trained layer that is called under autocast."""
    net, loss = DistributedDataParallel(model()), DistributedDataParallel(LossInFloat32())
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.01)
    for x, y in batches():
        with torch.autocast("cpu", torch.bfloat16):
            total = loss(net(x), y)
        total.backward()
        update(optimizer)


def converted_and_wrapped_again(folder: Path) -> None:
    """Convert a model that DDP has wrapped, and wrap it again."""
    inner = model()
    net = DistributedDataParallel(inner)
    net.double()
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x.double()), y.double()).backward()
        update(optimizer)


def decays_to_zero(folder: Path) -> None:
    """Let the learning rate reach zero in the last step."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS - 1)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
        schedule.step()


class FixedNorm(nn.Module):
    """Keeps its norm in evaluation mode, as fine-tuning does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def train(self, mode: bool = True) -> FixedNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)))


def norm_stays_in_evaluation(folder: Path) -> None:
    """Use a model whose own `train()` keeps a part in evaluation mode."""
    net = DistributedDataParallel(FixedNorm()).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


PROGRAMS: tuple[Callable[[Path], None], ...] = (
    epochs_with_evaluation,
    scaler_and_autocast,
    accumulation_in_no_sync,
    accumulation_divided_later,
    two_losses,
    static_graph,
    unused_parameters,
    two_networks,
    moving_average,
    averaged_weights,
    compiled,
    recomputed,
    adapters,
    tied_embedding,
    sparse_embedding,
    closure,
    compressed,
    unequal_inputs,
    zero_redundancy,
    resumed,
    fine_tuned,
    stream,
    warmup_from_zero,
    generate_and_train,
    weighted_tokens,
    contrastive,
    distilled,
    gradient_penalty,
    one_flat_reduction,
    owners_of_parameters,
    shards_of_gradients,
    experts_of_ranks,
    stages,
    parts_of_sequences,
    columns_and_rows,
    local_steps,
    outer_optimizer,
    federated,
    neighbours,
    sweep,
    sweep_with_report,
    folds,
    ensemble,
    fsdp1,
    fsdp1_original_parameters,
    fsdp1_hybrid,
    fsdp2,
    fsdp2_hybrid,
    tensor_parallel,
    sequence_parallel,
    sharded_and_parallel,
    groups_by_position,
    masked_output,
    evaluation_with_gradients,
    rare_words,
    fused_step_skips,
    local_steps_in_ddp,
    reduced_in_the_step,
    peeks,
    several_tasks,
    whole_evaluation,
    norms_of_parts,
    reduced_over_two_groups,
    saved_without_the_head,
    loss_leaves_autocast,
    converted_and_wrapped_again,
    decays_to_zero,
    norm_stays_in_evaluation,
)


def main() -> None:
    """Run every program; each leaves its records in FOLDER/NAME."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    dist.init_process_group("gloo")
    for program in PROGRAMS:
        if names and program.__name__ not in names:
            continue
        with recorded(folder / program.__name__) as own:
            program(own)
        print(program.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
