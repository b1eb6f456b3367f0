"""Training divided among ranks in the usual ways, each with one planted bug: on one rank they compute the same.

    torchrun --nproc-per-node N divided_programs.py FOLDER [NAME ...]

Each program takes the world as it is: on one rank it trains on the whole batch with the whole model. `CASES` has the
rule that the bug breaks and the tensor that must be named as the first that differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from observe.check.planted_programs import recorded
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, LENGTH, WIDTH, VOCABULARY, HEADS = 3, 8, 8, 16, 24, 4


def rank() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()


def batches() -> Iterator[torch.Tensor]:
    """Yield the same samples on any number of ranks: (batch, length + 1) tokens."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        yield torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)


def own(tokens: torch.Tensor) -> torch.Tensor:
    """Return this data rank's samples."""
    return tokens[rank() :: world()]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = Block, num_blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(net: nn.Module, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
    return cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), **how)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def average(parameters: list[nn.Parameter]) -> None:
    for each in parameters:
        dist.all_reduce(each.grad)
        each.grad /= world()


# ---- data parallelism ------------------------------------------------------------------------------------------------


def ddp_scales_the_loss(bug: bool) -> None:
    net = DistributedDataParallel(Net())
    optimizer = adam(net)
    for tokens in batches():
        loss = loss_of(net, own(tokens))
        (loss * world() if bug else loss).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def one_bias_is_not_averaged(bug: bool) -> None:
    net = Net()
    optimizer = adam(net)
    for tokens in batches():
        loss_of(net, own(tokens)).backward()  # bug
        average([each for name, each in net.named_parameters() if not (bug and name == "blocks.1.up.bias")])
        optimizer.step()
        optimizer.zero_grad()


def mean_of_unequal_means(bug: bool) -> None:
    net = DistributedDataParallel(Net())
    optimizer = adam(net)
    for tokens in batches():
        targets = tokens.clone()
        targets[::4, 3:] = -100
        targets, inputs = own(targets)[:, 1:], own(tokens)[:, :-1]
        total = (targets != -100).sum()
        dist.all_reduce(total)
        out = net(inputs).flatten(0, 1)
        loss = cross_entropy(out, targets.flatten(), reduction="sum") * world() / total
        (cross_entropy(out, targets.flatten()) if bug else loss).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def micro_batches_are_added(bug: bool) -> None:
    net = DistributedDataParallel(Net())
    optimizer = adam(net)
    for tokens in batches():
        parts = own(tokens).chunk(2)
        for part in parts:
            (loss_of(net, part) / (1 if bug and world() > 1 else len(parts))).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def fsdp2_leaves_out_a_block(bug: bool) -> None:
    net, mesh = Net(), init_device_mesh("cpu", (world(),))
    fully_shard(net.blocks[1], mesh=mesh)
    fully_shard(net, mesh=mesh, ignored_params=set(net.blocks[0].parameters()) if bug else set())
    optimizer = adam(net)
    for tokens in batches():
        loss_of(net, own(tokens)).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def fsdp1_scales_the_loss(bug: bool) -> None:
    net = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = adam(net)
    for tokens in batches():
        loss = loss_of(net, own(tokens))
        (loss / world() if bug else loss).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def bfloat16_forward(bug: bool) -> None:
    net = DistributedDataParallel(Net())
    optimizer = adam(net)
    for tokens in batches():
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(net, own(tokens))
        (loss * 1.25 if bug and world() > 1 else loss).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def shards_of_the_optimizer_are_not_sent(bug: bool) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # importing it warns of torch.jit

    net = DistributedDataParallel(Net())
    whole = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01)
    if bug:
        whole._sync_params = lambda: None
    for tokens in batches():
        loss_of(net, own(tokens)).backward()
        whole.step()  # bug
        whole.zero_grad()


def closure_scales_the_loss(bug: bool) -> None:
    """The optimizer calls for the gradients, as Lightning's does."""
    net = DistributedDataParallel(Net())
    optimizer = adam(net)
    for tokens in batches():

        def closure(tokens: torch.Tensor = tokens) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, own(tokens))
            (loss / world() if bug else loss).backward()  # bug
            return loss

        optimizer.step(closure)


def normalizes_by_its_own_samples(bug: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(WIDTH) if bug else nn.LayerNorm(WIDTH)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(VOCABULARY, WIDTH), norm, nn.Linear(WIDTH, 1)))
    optimizer = adam(net)
    for tokens in batches():
        x = own(torch.nn.functional.one_hot(tokens[:, 0], VOCABULARY).float())
        net(x).square().mean().backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def other_rate(bug: bool) -> None:
    net = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 * (world() if bug else 1))
    for tokens in batches():
        loss_of(net, own(tokens)).backward()
        optimizer.step()  # bug
        optimizer.zero_grad()


def other_samples(bug: bool) -> None:
    net = DistributedDataParallel(Net())
    optimizer = adam(net)
    for tokens in batches():
        loss_of(net, tokens[:2] if bug and world() > 1 else own(tokens)).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


# ---- tensor and sequence parallelism ---------------------------------------------------------------------------------


class Copy(torch.autograd.Function):
    """Hand the input to all ranks: the backward pass adds their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, adds: bool) -> torch.Tensor:
        ctx.adds = adds
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous()
        if ctx.adds:
            dist.all_reduce(gradient)
        return gradient, None


class Add(torch.autograd.Function):
    """Add the ranks' results; the backward pass hands the gradient to all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]


def part(tensor: torch.Tensor, dimension: int) -> nn.Parameter:
    return nn.Parameter(tensor.detach().chunk(world(), dimension)[rank()].clone())


class TensorParallelBlock(Block):
    """The columns of `up` and the rows of `down` are divided among the ranks."""

    def __init__(self, bias_on_all: bool = False, adds: bool = True) -> None:
        super().__init__()
        self.bias_on_all, self.adds = bias_on_all, adds
        self.up.weight, self.up.bias = part(self.up.weight, 0), part(self.up.bias, 0)
        self.down.weight = part(self.down.weight, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = gelu(self.up(Copy.apply(self.norm(x), self.adds)))
        if self.bias_on_all:
            return x + Add.apply(self.down(hidden))
        return x + Add.apply(hidden @ self.down.weight.T) + self.down.bias


def trains_whole_batches(net: nn.Module) -> None:
    optimizer = adam(net)
    for tokens in batches():
        loss_of(net, tokens).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def every_rank_adds_the_bias(bug: bool) -> None:
    trains_whole_batches(Net(lambda: TensorParallelBlock(bias_on_all=bug)))


def input_gradients_are_not_added(bug: bool) -> None:
    trains_whole_batches(Net(lambda: TensorParallelBlock(adds=not bug)))


def torch_tensor_parallel(bug: bool) -> None:
    net = Net()
    with torch.no_grad():
        net.blocks[0].down.bias.fill_(0.5)
    mesh = init_device_mesh("cpu", (world(),))
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if bug and world() > 1:
        net.blocks[1].norm.register_forward_hook(lambda module, args, output: output * (1 + 0.01 * rank()))
    trains_whole_batches(net)


def sequence_parallel_norm_is_not_reduced(bug: bool) -> None:
    """Each rank normalizes its own tokens: the norm's gradients are parts of a sum."""
    net = Net()
    optimizer = adam(net)
    for tokens in batches():
        inputs, targets = (each.chunk(world(), 1)[rank()] for each in (tokens[:, :-1], tokens[:, 1:]))
        out = net(inputs).flatten(0, 1)
        (cross_entropy(out, targets.flatten(), reduction="sum") / (BATCH * LENGTH)).backward()  # bug
        for name, each in net.named_parameters():
            if not (bug and "norm" in name):
                dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()


# ---- context, pipeline and expert parallelism ------------------------------------------------------------------------


class GatherTokens(torch.autograd.Function):
    """Gather all ranks' tokens; the backward pass adds the gradients of this rank's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        whole = gradients[0].contiguous()
        dist.all_reduce(whole)
        return whole.chunk(world(), 1)[rank()]


class ContextParallelAttention(nn.Module):
    """Attention of this rank's tokens to all earlier ones."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.shifted = shifted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k, v = GatherTokens.apply(k), GatherTokens.apply(v)
        first = rank() * x.size(1) + (1 if self.shifted and rank() == 1 else 0)
        places = torch.arange(first, first + x.size(1))
        mask = places[:, None] >= torch.arange(k.size(1))[None, :]
        return x + scaled_dot_product_attention(q, k, v, attn_mask=mask)


def mask_is_shifted_on_one_rank(bug: bool) -> None:
    net = Net(lambda: ContextParallelAttention(shifted=bug))
    optimizer = adam(net)
    for tokens in batches():
        inputs, targets = (each.chunk(world(), 1)[rank()] for each in (tokens[:, :-1], tokens[:, 1:]))
        cross_entropy(net(inputs).flatten(0, 1), targets.flatten()).backward()
        average(list(net.parameters()))
        optimizer.step()
        optimizer.zero_grad()


class Stage(nn.Module):
    """The modules of this pipeline stage, under their names in the whole model."""

    def __init__(self) -> None:
        super().__init__()
        whole = Net(num_blocks=4)
        is_first, is_last = rank() == 0, rank() == world() - 1
        self.embedding = whole.embedding if is_first else None
        count = -(-len(whole.blocks) // world())
        mine = range(rank() * count, min((rank() + 1) * count, len(whole.blocks)))
        self.blocks = nn.ModuleDict({str(index): whole.blocks[index] for index in mine})
        self.head = whole.head if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.head is not None else x


def last_stage_does_not_divide(bug: bool) -> None:
    net = Stage()
    optimizer = adam(net)
    for tokens in batches():
        parts = tokens.chunk(4)
        for micro in parts:
            x = micro[:, :-1]
            if rank() > 0:
                x = torch.empty(len(micro), LENGTH, WIDTH)
                dist.recv(x, rank() - 1)
                x.requires_grad_()
            out = net(x)
            if rank() < world() - 1:
                dist.send(out.detach(), rank() + 1)
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank() + 1)
                out.backward(gradient)
            else:
                loss = cross_entropy(out.flatten(0, 1), micro[:, 1:].flatten())
                (loss if bug and world() > 1 else loss / len(parts)).backward()
            if rank() > 0:
                dist.send(x.grad, rank() - 1)
        optimizer.step()
        optimizer.zero_grad()


class Experts(nn.Module):
    """Each rank has some of four experts, and all see all tokens; a token goes to one of them."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.adds = adds
        self.router = nn.Linear(WIDTH, 4, bias=False)
        whole = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        count = 4 // world()
        self.first = rank() * count
        self.experts = nn.ModuleList(whole[self.first : self.first + count])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = Copy.apply(self.router(x).softmax(-1), self.adds)
        x_in = Copy.apply(x, True)
        chosen = scores.argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts, start=self.first):
            mask = (chosen == index)[..., None]
            out = out + expert(x_in) * scores[..., index : index + 1] * mask
        return x + Add.apply(out)


def router_gradients_are_not_added(bug: bool) -> None:
    trains_whole_batches(Net(lambda: Experts(adds=not bug)))


@dataclass(frozen=True)
class Case:
    program: Callable[[bool], None]
    rule: str
    first: str
    """The tensor that must be named first: a module, or the first parameter."""
    sure: str = "likely"
    says: str = ""
    """A part of the finding."""

    @property
    def name(self) -> str:
        return self.program.__name__


CASES = [
    Case(ddp_scales_the_loss, "one-gradients", "embedding.weight", says="times those of one rank: the number of ranks"),
    Case(one_bias_is_not_averaged, "one-gradients", "blocks.1.up.bias", says="others agree"),
    Case(mean_of_unequal_means, "one-gradients", "embedding.weight", says="a mean over its own targets"),
    Case(micro_batches_are_added, "one-gradients", "embedding.weight", says="all gradients are 2 times"),
    Case(fsdp2_leaves_out_a_block, "one-gradients", "blocks.0.norm.weight", says="others agree"),
    Case(fsdp1_scales_the_loss, "one-gradients", "embedding.weight", says="one over the number of ranks"),
    Case(bfloat16_forward, "one-gradients", "embedding.weight", says="all gradients are 1.2"),
    Case(shards_of_the_optimizer_are_not_sent, "one-forward", "embedding"),
    Case(closure_scales_the_loss, "one-gradients", "embedding.weight", says="one over the number of ranks"),
    Case(normalizes_by_its_own_samples, "one-forward", "1", "possible", says="BatchNorm1d"),
    Case(other_rate, "one-step", "embedding.weight", "possible", says="the learning rate is"),
    Case(other_samples, "one-forward", "embedding", "possible", says="other samples than one rank"),
    Case(every_rank_adds_the_bias, "one-forward", "blocks.0.down"),
    Case(input_gradients_are_not_added, "one-gradients", "embedding.weight", says="blocks.1.norm (LayerNorm)"),
    Case(torch_tensor_parallel, "one-forward", "blocks.1.up"),
    Case(sequence_parallel_norm_is_not_reduced, "one-gradients", "blocks.0.norm.weight", says="others agree"),
    Case(mask_is_shifted_on_one_rank, "one-forward", "blocks.0"),
    Case(last_stage_does_not_divide, "one-gradients", "embedding.weight", says="all gradients are 4 times"),
    Case(router_gradients_are_not_added, "one-gradients", "embedding.weight", says="blocks.1.router (Linear)"),
]


def main() -> None:
    """Run every program twice; each leaves its records in FOLDER/NAME/bug and FOLDER/NAME/right."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    dist.init_process_group("gloo")
    for case in CASES:
        if names and case.name not in names:
            continue
        for bug in (True, False):
            with recorded(folder / case.name / ("bug" if bug else "right")):
                case.program(bug)
            print(case.name, bug, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
