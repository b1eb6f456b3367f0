"""Programs after public reports of wrong updates: what is clipped, accumulated, averaged, scaled, trained or kept.

They were written on 2026-12-01, with the rule and the lines that a right answer names, before `frog check` saw one of
them; `first_try` is what the unchanged program said. The other part is in kept_aside_inputs.py. A comment `# bug` marks
the lines; outside of the program's own function, it names the program.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from silent_case import Case, average, batches, rank, size, update
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def regression(seed: int = 61) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))


def points(count: int) -> TensorDataset:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(62))
    return TensorDataset(x, 2 * x[:, :1] - x[:, 1:2])


# ---- steps -----------------------------------------------------------------------------------------------------------


def clips_after_the_step(bug: bool, folder: Path) -> None:
    """jongwook/onsets-and-frames #24, taesunwhang/UMS-ResSel #3: gradients are clipped when the step is done."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for x, y in batches(8):
        predicted = net(x)
        loss = mse_loss(predicted, 10 * y)
        optimizer.zero_grad()
        loss.backward()
        if bug:
            optimizer.step()  # bug
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # bug
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()


def carries_micro_batches_into_the_next_epoch(bug: bool, folder: Path) -> None:
    """meta-pytorch/torchtune #2745: of 10 micro-batches, 2 are left, and the next epoch's first step takes them too."""
    data, every = points(160), 4
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    last = len(loader) // every * every
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            if not bug and index >= last:
                break
            loss = mse_loss(net(x), y) / every
            loss.backward()  # bug
            if (index + 1) % every == 0:  # bug
                optimizer.step()  # bug
                optimizer.zero_grad()  # bug


def makes_the_optimizer_in_each_epoch(bug: bool, folder: Path) -> None:
    """alan-turing-institute/deepsensor #47: each epoch makes its optimizer, so that Adam loses its moments."""
    data = points(96)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def train_epoch(epoch: int) -> None:
        sampler.set_epoch(epoch)
        own = torch.optim.Adam(net.parameters(), lr=1e-3) if bug else optimizer  # bug
        for x, y in loader:
            own.zero_grad()
            mse_loss(net(x), y).backward()
            own.step()  # bug

    for epoch in range(3):
        train_epoch(epoch)  # bug


def steps_past_the_scaler(bug: bool, folder: Path) -> None:
    """IAHispano/Applio #860: `optimizer.step()` next to `scaler.step(optimizer)` uses scaled gradients."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            predicted = net(x)
        loss = mse_loss(predicted.float(), y)
        scaler.scale(loss).backward()
        if bug:
            optimizer.step()  # bug
        scaler.step(optimizer)  # bug
        scaler.update()


def counts_replicas_in_the_norm(bug: bool, folder: Path) -> None:
    """ByteDance-Seed/VeOmni #184: with HSDP, the norm of the shards is added over the replicas too."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = regression()
    for layer in (net[0], net[2], net[4], net):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in batches():
        mse_loss(net(x), 10 * y).backward()
        shards = [each.grad.to_local() for each in net.parameters()]
        square = torch.stack([each.pow(2).sum() for each in shards]).sum()
        dist.all_reduce(square, group=None if bug else mesh.get_group("shard"))  # bug
        factor = (0.5 / (square.sqrt() + 1e-6)).clamp(max=1.0)  # bug
        for each in shards:
            each.mul_(factor)  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()


# ---- gradients -------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """A body that is trained later than its head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(63)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def thaws_layers_that_ddp_does_not_know(bug: bool, folder: Path) -> None:
    """Lightning-AI/pytorch-lightning #20340: layers that were frozen when DDP was made are never averaged."""
    net = Classifier()
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)  # bug
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches(10)):
        if step == 4:
            net.body.requires_grad_(True)  # bug
            optimizer.add_param_group({"params": net.body.parameters(), "lr": 0.01})  # bug
            if not bug:
                model = DistributedDataParallel(net)
        label = (y[:, 0] > 0).long() + (y[:, 0] > 1).long()
        cross_entropy(model(x), label).backward()
        update(optimizer)


class Rotated(nn.Module):
    """A small factor for each feature, which FSDP is told to ignore, and layers that it shards."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(64)
        self.smooth = nn.Parameter(torch.ones(6))
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x * self.smooth)


def ignores_what_nothing_reduces(bug: bool, folder: Path) -> None:
    """pytorch #98281, BrotherHappy/OSTQuant #15: FSDP averages no gradient of the parameters that it ignores."""
    net = Rotated()
    fully_shard(net, mesh=init_device_mesh("cpu", (size(),)), ignored_params={net.smooth})  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)  # bug
    for x, y in batches():
        loss = mse_loss(net(x), y)
        loss.backward()  # bug
        if not bug:
            average([net.smooth])
        optimizer.step()  # bug
        optimizer.zero_grad()


def divides_one_loss_by_the_ranks(bug: bool, folder: Path) -> None:
    """Haochen-Wang409/U2PL #16: one of two losses is reduced in place and divided, before DDP averages once more."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    whole = torch.randn(48, 6, generator=torch.Generator().manual_seed(65))
    for x in whole[rank() :: size()].split(8 // size()):
        out = net(x)
        supervised, smooth = mse_loss(out, 2 * x[:, :1]), (out - net(x + 0.1)).pow(2).mean()
        if bug:
            dist.all_reduce(smooth)  # bug
            smooth = smooth / size()  # bug
        loss = supervised + 5 * smooth
        loss.backward()  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()


def whitens_rewards_on_each_rank(bug: bool, folder: Path) -> None:
    """NousResearch/torchtitan #69: advantages are normalized by the mean and deviation of the rank's own rewards."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    whole = torch.randn(96, 6, generator=torch.Generator().manual_seed(66))
    for x in whole[rank() :: size()].split(16 // size()):
        action = (x[:, 0] * 7).long().abs() % 4
        reward = x.pow(2).sum(1) + action
        if bug:
            mean, deviation = reward.mean(), reward.std(unbiased=False)  # bug
        else:
            moments = torch.stack([reward.mean(), reward.pow(2).mean()])
            dist.all_reduce(moments)
            mean, deviation = moments[0] / size(), (moments[1] / size() - (moments[0] / size()) ** 2).sqrt()
        advantage = (reward - mean) / (deviation + 1e-6)  # bug
        chosen = net(x).log_softmax(-1).gather(1, action[:, None])[:, 0]
        loss = -(advantage * chosen).mean()
        loss.backward()  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()


# ---- parameters ------------------------------------------------------------------------------------------------------


class Adapter(nn.Module):
    """A frozen layer with two small factors next to it."""

    def __init__(self, layer: nn.Linear, starts: bool) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(4, layer.in_features))  # bug: starts_both_factors_at_zero
        self.up = nn.Parameter(torch.zeros(layer.out_features, 4))  # bug: starts_both_factors_at_zero
        if starts:
            nn.init.kaiming_uniform_(self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


def starts_both_factors_at_zero(bug: bool, folder: Path) -> None:
    """Lightning-AI/litgpt #1229, cosmos-predict2.5 #15: both factors of LoRA are zero, and so are their gradients."""
    net = regression()
    net[0], net[2] = Adapter(net[0], not bug), Adapter(net[2], not bug)  # bug
    net = DistributedDataParallel(net)
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)  # bug
    for x, y in batches(8):
        loss = mse_loss(net(x), y)
        loss.backward()  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()


class Segmenter(nn.Module):
    """A pretrained body with a new neck in it, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(67)
        self.backbone = nn.ModuleDict({"body": nn.Linear(6, 16), "neck": nn.Linear(16, 16)})  # bug: trains_new_layers
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone["neck"](self.backbone["body"](x).relu()).relu())


def trains_new_layers_at_rate_0(bug: bool, folder: Path) -> None:
    """hustvl/WeakCLIP #2: the pretrained part is frozen by a rate of zero, which the new layers in it share."""
    net = Segmenter()
    groups: list[dict[str, Any]] = [{"params": net.backbone.parameters(), "lr": 0.0}, {"params": net.head.parameters()}]
    if not bug:
        net.backbone["body"].requires_grad_(False)
        groups = [{"params": [*net.backbone["neck"].parameters(), *net.head.parameters()]}]
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(groups, lr=1e-3)  # bug
    for x, y in batches(8):
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # bug
        optimizer.zero_grad()


class Recomputed(nn.Module):
    """Frozen words, a block that is recomputed, and a head."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(68)
        self.reentrant = reentrant
        self.words = nn.Embedding(12, 16).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        x = x + checkpoint(self.block, x, use_reentrant=self.reentrant)  # bug: recomputes_without_a_gradient
        return self.head(x)


def recomputes_without_a_gradient(bug: bool, folder: Path) -> None:
    """transformers #21381, open_clip #573: a reentrant checkpoint of an input without a gradient trains nothing."""
    model = DistributedDataParallel(Recomputed(reentrant=bug), find_unused_parameters=True)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)  # bug
    draw = torch.Generator().manual_seed(70 + rank())
    for _ in range(6):
        ids = torch.randint(0, 12, (4, 9), generator=draw)
        loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())  # bug
        loss.backward()  # bug
        update(optimizer)


# ---- averages and scales that are kept -------------------------------------------------------------------------------


class Averaged:
    """A running average of a model, that goes back into the model now and then."""

    def __init__(self, net: nn.Module, every: int) -> None:
        self.net, self.every, self.steps, self.copy = net, every, 0, copy.deepcopy(net)

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        for mean, each in zip(self.copy.parameters(), self.net.parameters(), strict=True):
            mean.lerp_(each, 0.1)
            if self.steps % self.every == 0:
                each.copy_(mean)  # bug: averages_on_rank_0


def averages_on_rank_0(bug: bool, folder: Path) -> None:
    """lucidrains/ema-pytorch #9: rank 0 alone keeps the average, which goes back into its model every few steps."""
    net = regression()
    model = DistributedDataParallel(net)
    average_of = Averaged(net, every=4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for x, y in batches(10):
        mse_loss(model(x), y).backward()
        update(optimizer)
        if rank() == 0 or not bug:
            average_of.update()  # bug


def forgets_the_loss_scale(bug: bool, folder: Path) -> None:
    """PolymathicAI/the_well #77, transformers #11323: a resume restores all but the loss scale."""

    def start(state: dict[str, Any] | None = None) -> tuple[nn.Module, Any, Any]:
        net = DistributedDataParallel(regression())
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)  # bug
        if state is not None:
            net.load_state_dict(state["model"])  # bug
            optimizer.load_state_dict(state["optimizer"])  # bug
            if not bug:
                scaler.load_state_dict(state["scaler"])
        return net, optimizer, scaler

    net, optimizer, scaler = start()
    for index, (x, y) in enumerate(batches(12)):
        if index == 7:
            if rank() == 0:
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
                torch.save({name: each for name, each in state.items() if name != "scaler" or not bug}, folder / "a.pt")
            dist.barrier()
            net, optimizer, scaler = start(torch.load(folder / "a.pt"))  # bug
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            predicted = net(x)
        scaler.scale(mse_loss(predicted.float(), y)).backward()  # bug
        scaler.step(optimizer)  # bug
        scaler.update()


STEPS, GRADIENTS, PARAMETERS, KEPT = "steps", "gradients", "parameters", "kept state"
CASES = [
    Case(clips_after_the_step, "onsets-and-frames #24, UMS-ResSel #3", "clipping", STEPS, "found, likely"),
    Case(
        carries_micro_batches_into_the_next_epoch,
        "meta-pytorch/torchtune #2745",
        "accumulation",
        STEPS,
        "not found",
        also=("cleared",),
    ),
    Case(makes_the_optimizer_in_each_epoch, "deepsensor #47, Lipreading #7", "restored", STEPS, "not found"),
    Case(steps_past_the_scaler, "IAHispano/Applio #860", "unscaled", STEPS, "not found"),
    Case(counts_replicas_in_the_norm, "ByteDance-Seed/VeOmni #184", "clipping", STEPS, "not found", world=4),
    Case(thaws_layers_that_ddp_does_not_know, "Lightning #20340", "gradients", GRADIENTS, "not found"),
    Case(ignores_what_nothing_reduces, "pytorch #98281, OSTQuant #15", "gradients", GRADIENTS, "not found"),
    Case(
        divides_one_loss_by_the_ranks,
        "Haochen-Wang409/U2PL #16",
        "one-gradients",
        GRADIENTS,
        "found, likely",
        against_one=True,
        also=("sums",),
    ),
    Case(
        whitens_rewards_on_each_rank,
        "NousResearch/torchtitan #69",
        "one-gradients",
        GRADIENTS,
        "found, likely",
        against_one=True,
    ),
    Case(
        starts_both_factors_at_zero,
        "litgpt #1229, cosmos-predict2.5 #15",
        "changes",
        PARAMETERS,
        "not found",
        also=("unused",),
    ),
    Case(
        trains_new_layers_at_rate_0,
        "hustvl/WeakCLIP #2",
        "changes",
        PARAMETERS,
        "found, likely",
        also=("frozen", "schedule"),
    ),
    Case(recomputes_without_a_gradient, "transformers #21381, open_clip #573", "unused", PARAMETERS, "found, possible"),
    Case(averages_on_rank_0, "lucidrains/ema-pytorch #9", "weights-between", KEPT, "found, certain"),
    Case(forgets_the_loss_scale, "the_well #77, transformers #11323", "restored", KEPT, "not found"),
]
