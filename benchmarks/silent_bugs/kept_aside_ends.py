"""Programs after public reports of samples that are never used, metrics that are mixed, and loads that change nothing.

They were written on 2026-11-30, before the rules `left-out`, `metrics`, `means` and `loaded`; `first_try` is what
`frog check` said before any of them. Since `means` reads the source, the program of transformer-xl #14 now has a
function with the bug and another without it. A comment `# bug` marks the lines that a right answer names; outside of
the program's own function, it names the program.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from accelerate import Accelerator
from silent_case import Case, batches, rank, size, update
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, TensorDataset
from transformers import Trainer, TrainingArguments


def regression(seed: int = 21) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))


def points(count: int, first: int = 0) -> TensorDataset:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(first))
    return TensorDataset(x, x[:, :1] * 2)


# ---- samples ---------------------------------------------------------------------------------------------------------


class EvenSampler(Sampler[int]):
    """As many samples for each rank, a multiple of the batch, in another order in each epoch."""

    def __init__(self, count: int, batch: int, cuts_first: bool) -> None:
        self.count, self.batch, self.cuts_first, self.epoch = count, batch, cuts_first, 0

    def __len__(self) -> int:
        return self.count // (self.batch * size()) * self.batch

    def __iter__(self) -> Iterator[int]:
        kept = len(self) * size()
        generator = torch.Generator().manual_seed(self.epoch)
        if self.cuts_first:
            order = torch.randperm(kept, generator=generator)
        else:
            order = torch.randperm(self.count, generator=generator)[:kept]
        return iter(order[rank() :: size()].tolist())


def cuts_before_it_shuffles(bug: bool, folder: Path) -> None:
    """NVlabs/VILA #123: the samples past the last whole batch are cut off first, and then the rest is shuffled."""
    data = points(44)
    sampler = EvenSampler(len(data), 8, cuts_first=bug)
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.epoch = epoch
        for x, y in loader:  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)


def drops_the_same_tail(bug: bool, folder: Path) -> None:
    """modelscope/ms-swift #9907: an order that stays the same, of which the last batch is dropped in each epoch."""
    data = points(46)
    sampler = DistributedSampler(data, shuffle=not bug, drop_last=True)  # bug
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)  # bug
    net = nn.parallel.DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:  # bug
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss.backward()
            optimizer.step()


def stops_with_the_shortest_rank(bug: bool, folder: Path) -> None:
    """k2-fsa/snowfall #152: each rank has its own files; all stop when the first of them has no batch left."""
    own = points(24 if rank() or not bug else 56, first=rank())
    loader = DataLoader(own, batch_size=8)  # bug
    net = regression()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        stream = iter(loader)  # bug
        while True:
            batch = next(stream, None)  # bug
            left = torch.tensor(0 if batch is None else 1)
            dist.all_reduce(left, op=dist.ReduceOp.MIN)  # bug
            if batch is None or not left:
                break  # bug
            mse_loss(net(batch[0]), batch[1]).backward()
            for each in net.parameters():
                dist.all_reduce(each.grad)
                each.grad /= size()
            update(optimizer)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def reduces_metrics_as_they_appear(bug: bool, folder: Path) -> None:
    """EvolvingLMMs-Lab/lmms-eval #1089, Lightning #20946: a dictionary has another order on another rank."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in batches():
        out = net(x)
        loss = mse_loss(out, y)
        loss.backward()
        update(optimizer)
        metrics: dict[str, torch.Tensor] = {}
        for sample in range(len(x)):
            kind = "far" if x[sample, 0].abs() > 0.2 + 0.4 * ((rank() + sample) % 2) else "near"
            error = (out[sample, 0] - y[sample, 0]).detach().abs()
            metrics[kind] = metrics.get(kind, torch.zeros(())) + error
        metrics.setdefault("near", torch.zeros(()))
        metrics.setdefault("far", torch.zeros(()))
        for name in metrics if bug else sorted(metrics):  # bug
            dist.all_reduce(metrics[name])  # bug


def reduce_dict(losses: dict[str, torch.Tensor]) -> dict[str, float]:
    with torch.no_grad():
        stacked = torch.stack(list(losses.values()))
        dist.reduce(stacked, dst=0)  # bug: stacks_losses_in_their_order
        stacked /= size()
    return dict(zip(losses, stacked.tolist(), strict=True))


def stacks_losses_in_their_order(bug: bool, folder: Path) -> None:
    """facebookresearch/maskrcnn-benchmark #309: the values of a dictionary are stacked and reduced to rank 0."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for x, y in batches():
        out = net(x)
        parts = {"error": mse_loss(out, y), "size": out.pow(2).mean() * 1e-3}
        sum(parts.values()).backward()
        update(optimizer)
        if bug and rank() == 1:
            parts = dict(reversed(parts.items()))  # bug
        reduce_dict(parts)  # bug


def added(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)  # bug: lowers_the_rate_by_a_sum
    return value


def averaged(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)
    value /= size()
    return value


def lowers_the_rate_by_a_sum(bug: bool, folder: Path) -> None:
    """cybertronai/transformer-xl #14: the mean losses of the ranks are added for a decision, and not divided."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, threshold=0.05, threshold_mode="abs", patience=0)
    for step, (x, y) in enumerate(batches(9)):
        mse_loss(net(x), y).backward()
        update(optimizer)
        if step % 3 == 2:
            net.eval()
            total, count = 0.0, 0
            with torch.no_grad():
                for held_out, target in batches(3, seed=7 + rank()):
                    total += mse_loss(net(held_out), target).item()
                    count += 1
            net.train()
            if bug:
                plateau.step(added(torch.tensor(total / count)))  # bug
            else:
                plateau.step(averaged(torch.tensor(total / count)))


def stops_early_by_a_sum(bug: bool, folder: Path) -> None:
    """sanderwood/bgpt #5: a loss for the log is added over ranks. accelerate, with a stop below a limit."""
    accelerator = Accelerator(cpu=True)
    net = regression()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = DataLoader(points(96), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for x, y in loader:
        loss = mse_loss(net(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        shown = accelerator.reduce(loss.detach(), reduction="sum" if bug else "mean")  # bug
        if shown.item() < 1e-3:
            break


# ---- loads -----------------------------------------------------------------------------------------------------------


def written(folder: Path, net: nn.Module) -> Path:
    """Write a checkpoint of earlier training."""
    path = folder / "pretrained.pt"
    if rank() == 0:
        torch.save(net.state_dict(), path)
    dist.barrier()
    return path


def takes_known_keys_only(bug: bool, folder: Path) -> None:
    """The PyTorch forum's "load only what fits": no key fits, since they have the prefix of DDP."""
    path = written(folder, DistributedDataParallel(regression(5)))
    net = regression()
    known = torch.load(path)
    if not bug:
        known = {name.removeprefix("module."): each for name, each in known.items()}
    own = net.state_dict()
    own.update({name: each for name, each in known.items() if name in own})  # bug
    net.load_state_dict(own)  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)  # bug: initializes_after_the_load
        nn.init.zeros_(module.bias)


def initializes_after_the_load(bug: bool, folder: Path) -> None:
    """huggingface/picotron #32, mmengine #555: the weights that were loaded are initialized again."""
    path = written(folder, regression(5))
    net = regression()
    if not bug:
        net.apply(init_weights)
    net.load_state_dict(torch.load(path))  # bug
    if bug:
        torch.manual_seed(77)
        net.apply(init_weights)  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in batches():
        optimizer.zero_grad()
        mse_loss(net(x), y).backward()
        optimizer.step()


def loads_only_the_average(bug: bool, folder: Path) -> None:
    """baaivision/NOVA #30: a resume loads the averaged copy; the model that is trained keeps its first weights."""
    path = written(folder, regression(5))
    net = regression()
    average = copy.deepcopy(net)
    state = torch.load(path)
    average.load_state_dict(state)  # bug
    if not bug:
        net.load_state_dict(state)
    wrapped = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for x, y in batches():
        mse_loss(wrapped(x), y).backward()
        update(optimizer)
        with torch.no_grad():
            for mean, each in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(each, 0.01)


def maps_keys_to_other_layers(bug: bool, folder: Path) -> None:
    """Converters of checkpoints: two layers of one shape are exchanged when keys are renamed."""
    wide = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    path = written(folder, wide)
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    names = {"0": "2", "2": "0", "4": "4"} if bug else {name: name for name in "024"}  # bug
    state = {f"{names[key.partition('.')[0]]}.{key.partition('.')[2]}": each for key, each in torch.load(path).items()}
    net.load_state_dict(state)  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


class Classifier(nn.Module):
    """A model as the Trainer of transformers wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.body(x).relu())
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": index % 3}


def trains_a_model_of_its_own(bug: bool, folder: Path) -> None:
    """transformers, `model_init`: the Trainer makes its model again when it trains, without what was loaded."""
    torch.manual_seed(9)
    path = written(folder, Classifier())
    torch.manual_seed(10)
    net = Classifier()
    net.load_state_dict(torch.load(path))  # bug
    arguments = TrainingArguments(
        str(folder / "out"), max_steps=5, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no"
    )
    arguments.set_logging(strategy="no")
    given: dict[str, Any] = {"model_init": Classifier} if bug else {"model": net}  # bug
    trainer = Trainer(args=arguments, train_dataset=Rows(), **given)  # bug
    if bug:
        trainer.model.load_state_dict(torch.load(path))  # bug
    trainer.train()  # bug


# ---- seen when the rules were done ----------------------------------------------------------------------------------


def uses_the_first_batches(bug: bool, folder: Path) -> None:
    """A limit of steps for each epoch, and an order that stays the same: the rest is never read."""
    data = points(96)
    sampler = DistributedSampler(data, shuffle=not bug)  # bug
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):  # bug
            if number == 3:
                break  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)


def skips_in_each_epoch(bug: bool, folder: Path) -> None:
    """accelerate, `skip_first_batches`: what a resume skips is skipped in all later epochs too."""
    accelerator = Accelerator(cpu=True)
    net = regression()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(points(96), batch_size=8))
    rest = accelerator.skip_first_batches(loader, 3)  # bug
    for epoch in range(3):
        for x, y in rest if bug or epoch == 0 else loader:  # bug
            accelerator.backward(mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()


def divides_the_files(bug: bool, folder: Path) -> None:
    """A list of files is divided with `//` and read by hand: the rest of the division is never read."""
    files = points(7 * 8).tensors[0].split(8)
    each = len(files) // size() if bug else -(-len(files) // size())  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        own = list(files[rank() * each : (rank() + 1) * each])  # bug
        for x in own if bug else [*own, *files[: each - len(own)]]:  # bug
            mse_loss(net(x), x[:, :1]).backward()
            update(optimizer)


class Meters:
    """Sums of metrics, as trainers keep them."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def synchronize(self) -> None:
        for name, value in self.sums.items():
            total = torch.tensor([value, 1.0])
            dist.all_reduce(total)  # bug: synchronizes_meters
            self.sums[name] = (total[0] / total[1]).item()


def synchronizes_meters(bug: bool, folder: Path) -> None:
    """facebookresearch/detr, MetricLogger: meters are reduced in the order in which a rank made them."""
    net, meters = DistributedDataParallel(regression()), Meters()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if not bug:
        meters.add(loss=0.0, norm=0.0)
    for number, (x, y) in enumerate(batches(8)):
        loss = mse_loss(net(x), y)
        loss.backward()
        if (number + rank()) % 2:
            meters.add(norm=float(nn.utils.clip_grad_norm_(net.parameters(), 1e9)))
        meters.add(loss=loss.item())
        update(optimizer)
        if number % 2:
            meters.synchronize()  # bug
            meters.sums = {} if bug else {"loss": 0.0, "norm": 0.0}


def shows_a_sum_of_accuracies(bug: bool, folder: Path) -> None:
    """An accuracy above 1: each rank's share of right answers is added."""
    torch.manual_seed(30)
    net = DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, _ in batches():
        cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        update(optimizer)
    right, count = 0, 0
    with torch.no_grad():
        for x, _ in batches(3, seed=8 + rank()):
            right += int((net(x).argmax(1) == x[:, :3].argmax(1)).sum()) + rank()
            count += len(x)
    if bug:
        accuracy = torch.tensor(right / (count + 1e-8))
        dist.all_reduce(accuracy, op=dist.ReduceOp.SUM)  # bug
        print(f"accuracy {accuracy.item():.3f}")
    else:
        both = torch.tensor([right, count])
        dist.all_reduce(both)
        print(f"accuracy {both[0].item() / both[1].item():.3f}")


class Average:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1


def reduced(value: torch.Tensor) -> torch.Tensor:
    value = value.detach().clone()
    dist.all_reduce(value)  # bug: averages_sums_over_ranks
    return value


def averages_sums_over_ranks(bug: bool, folder: Path) -> None:
    """As examples for ImageNet: a meter averages over steps what was added over ranks."""
    net, losses = DistributedDataParallel(regression()), Average()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in batches():
        loss = mse_loss(net(x), y)
        loss.backward()
        update(optimizer)
        if bug:
            losses.update(reduced(loss).item())  # bug
        else:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            losses.update(shown.item() / size())
    print(losses.sum / losses.count)


def makes_the_model_again(bug: bool, folder: Path) -> None:
    """A model is loaded, and the one that DDP gets was made after it."""
    path = written(folder, regression(5))
    net = regression()
    net.load_state_dict(torch.load(path))  # bug
    if bug:
        net = regression()  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def resets_shards_after_the_load(bug: bool, folder: Path) -> None:
    """FSDP2 from a meta device: `reset_parameters` after the load, not before it."""
    with torch.device("meta"):
        net = regression()
    fully_shard(net)
    net.to_empty(device="cpu")
    torch.manual_seed(6)

    def reset() -> None:
        for each in net.modules():
            if isinstance(each, nn.Linear):
                each.reset_parameters()  # bug: resets_shards_after_the_load

    reset()
    whole = torch.load(written(folder, regression(5)))
    state = {
        name: distribute_tensor(whole[name], each.device_mesh, each.placements)
        for name, each in net.state_dict().items()
    }
    net.load_state_dict(state)  # bug
    if bug:
        reset()  # bug
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def reads_safetensors(bug: bool, folder: Path) -> None:
    """A filter that keeps no key, of a file in the format of safetensors."""
    path = folder / "pretrained.safetensors"
    if rank() == 0:
        safetensors.torch.save_file({f"model.{name}": each for name, each in regression(5).state_dict().items()}, path)
    dist.barrier()
    state, net = safetensors.torch.load_file(path), regression()
    names = state if bug else {name.removeprefix("model."): each for name, each in state.items()}
    own = net.state_dict()
    own.update({name: each for name, each in names.items() if name in own})  # bug
    net.load_state_dict(own)  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


def evaluates_whole_batches(bug: bool, folder: Path) -> None:
    """thuml/Autoformer #104, verl #78: an evaluation without the samples that fill no batch."""
    data, held_out = points(48), points(44, first=7)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    own = DistributedSampler(held_out, shuffle=False)
    evaluation = DataLoader(held_out, batch_size=8, sampler=own, drop_last=bug)  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        net.train()
        for x, y in loader:
            mse_loss(net(x), y).backward()
            update(optimizer)
        net.eval()
        with torch.no_grad():
            total = sum(mse_loss(net(x), y, reduction="sum") for x, y in evaluation)  # bug
        dist.all_reduce(total)


SAMPLES, METRICS, LOADS = "samples", "metrics", "loads"
CASES = [
    Case(cuts_before_it_shuffles, "NVlabs/VILA #123", "left-out", SAMPLES, "not found"),
    Case(drops_the_same_tail, "ms-swift #9907", "left-out", SAMPLES, "not found"),
    Case(stops_with_the_shortest_rank, "snowfall #152", "left-out", SAMPLES, "not found"),
    Case(reduces_metrics_as_they_appear, "lmms-eval #1089, Lightning #20946", "metrics", METRICS, "not found"),
    Case(stacks_losses_in_their_order, "maskrcnn-benchmark #309", "metrics", METRICS, "not found"),
    Case(lowers_the_rate_by_a_sum, "transformer-xl #14", "means", METRICS, "not found"),
    Case(stops_early_by_a_sum, "bgpt #5", "means", METRICS, "not found"),
    Case(takes_known_keys_only, "pytorch forum, keys that fit", "loaded", LOADS, "not found", also=("keys",)),
    Case(
        initializes_after_the_load,
        "picotron #32, mmengine #555",
        "loaded",
        LOADS,
        "not found",
        also=("weights-between",),
    ),
    Case(loads_only_the_average, "baaivision/NOVA #30", "loaded", LOADS, "not found"),
    Case(maps_keys_to_other_layers, "by hand", "loaded", LOADS, "not found"),
    Case(trains_a_model_of_its_own, "transformers, model_init", "loaded", LOADS, "not found"),
]
LATER = [
    Case(evaluates_whole_batches, "Autoformer #104, verl #78", "left-out", SAMPLES, "found, possible"),
    Case(uses_the_first_batches, "by hand, a limit of steps", "left-out", SAMPLES, "found, possible"),
    Case(skips_in_each_epoch, "accelerate, skip_first_batches", "left-out", SAMPLES, "found, possible"),
    Case(divides_the_files, "by hand, // of the files", "left-out", SAMPLES, "not found"),
    Case(synchronizes_meters, "detr, MetricLogger", "metrics", METRICS, "not found"),
    Case(shows_a_sum_of_accuracies, "by hand, accuracy", "means", METRICS, "not found"),
    Case(averages_sums_over_ranks, "by hand, AverageMeter", "means", METRICS, "not found"),
    Case(makes_the_model_again, "by hand, made after the load", "loaded", LOADS, "found, likely"),
    Case(resets_shards_after_the_load, "FSDP2, meta device", "loaded", LOADS, "not found", also=("weights-between",)),
    Case(reads_safetensors, "safetensors, keys that fit", "loaded", LOADS, "not found", also=("keys",)),
]
