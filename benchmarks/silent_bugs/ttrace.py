"""Programs after the silent bugs of Megatron-LM and Transformer Engine that TTrace (Jiang et al., 2025) detects.

They show the causes in layers split by hand: pipelines, tensor, sequence and context parallelism on a CPU. The paper
counts 11 bugs that were known and 3 that are new. Its table was not at hand when these programs were written: each
names a public issue with the cause, of which the authors opened the new ones, or only the kind. The list may differ
from the paper's in some rows. One bug, of casts to FP8, is left out: it needs a GPU with FP8. A comment `# bug` marks
the lines that a right answer names; outside of the program's own function, it names the program, or how the names of
several begin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from silent_case import Added, Case, ColumnsAndRows, Gathered, Split, average, batches, part_of, rank, size, update
from torch import nn
from torch.nn.functional import cross_entropy, embedding, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, STEPS = 16, 8, 6


def words(seed: int | None = None) -> torch.Tensor:
    """Return the token ids of all steps: of the rank's own, or of a seed that ranks share."""
    generator = torch.Generator().manual_seed(rank() if seed is None else seed)
    return torch.randint(0, VOCABULARY, (STEPS, 4, 6), generator=generator)


def next_of(ids: torch.Tensor) -> torch.Tensor:
    return ((ids + 1) % VOCABULARY).flatten()


# ---- tensor and sequence parallelism ---------------------------------------------------------------------------------


class SplitEmbedding(nn.Module):
    """Each rank has a part of the words; those of other ranks count as zero before the sum."""

    def __init__(self, wrong_mask: bool) -> None:
        super().__init__()
        part_of(2)
        self.wrong_mask, own = wrong_mask, VOCABULARY // size()
        self.first, self.end = rank() * own, (rank() + 1) * own
        self.weight = nn.Parameter(torch.randn(own, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        absent = ids >= self.end
        absent |= ids <= self.first if self.wrong_mask else ids < self.first  # bug: wrong_embedding_mask
        own = embedding((ids - self.first).masked_fill(absent, 0), self.weight)
        return Added.apply(own.masked_fill(absent[..., None], 0.0))


def wrong_embedding_mask(bug: bool, folder: Path) -> None:
    """TTrace: tensor parallelism, wrong embedding mask. The first word of each rank's part belongs to no rank."""
    table = SplitEmbedding(bug)
    torch.manual_seed(3)
    head = nn.Linear(WIDTH, VOCABULARY)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=0.01)
    for ids in words(seed=5):
        cross_entropy(head(table(ids)).flatten(0, 1), next_of(ids)).backward()
        update(optimizer)


class SequenceParallel(nn.Module):
    """Norm and router see a part of the sequence on each rank, the layers between see all of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, 2)  # bug: router_not_reduced
        self.final_norm = nn.LayerNorm(WIDTH)  # bug: norm_not_reduced
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.halves = ColumnsAndRows(WIDTH, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids.chunk(size(), 1)[rank()]).flatten(0, 1)
        x = x * self.router(x).softmax(-1)[:, :1]
        x = x + Split.apply(self.halves(Gathered.apply(self.norm(x))))
        return self.head(self.final_norm(x))


def trained_in_parts(apart: str, folder: Path, again: str = "") -> None:
    """Train the model above; the gradients of `apart` stay with each rank, those of `again` are added twice."""
    net = SequenceParallel()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for ids in words(seed=6):
        targets = ((ids + 1) % VOCABULARY).chunk(size(), 1)[rank()].flatten()
        (cross_entropy(net(ids), targets) / size()).backward()
        for name, each in net.named_parameters():
            if name.startswith("halves") or (apart and name.startswith(apart)):
                continue
            dist.all_reduce(each.grad)  # bug: router_not_reduced norm_not_reduced
            if again and name.startswith(again):
                dist.all_reduce(each.grad)  # bug: norm_reduced_twice
        update(optimizer)


def router_not_reduced(bug: bool, folder: Path) -> None:
    """Megatron-LM #599: the gradients of a router whose input is split over the sequence stay with each rank."""
    trained_in_parts("router" if bug else "", folder)


def norm_not_reduced(bug: bool, folder: Path) -> None:
    """Megatron-LM #1446 (new in TTrace): the same for the final norm."""
    trained_in_parts("final_norm" if bug else "", folder)


def norm_reduced_twice(bug: bool, folder: Path) -> None:
    """Megatron-LM #1528 (new in TTrace): the gradient of a norm is as many times too large as there are ranks."""
    trained_in_parts("", folder, "norm" if bug else "")


# ---- context parallelism ---------------------------------------------------------------------------------------------


class GatheredKeys(torch.autograd.Function):
    """All ranks' keys; the gradient that other ranks have for this rank's keys must come back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forgets: bool) -> torch.Tensor:
        ctx.forgets = forgets
        whole = x.new_empty(size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None]:
        slope = slope.clone()
        if not ctx.forgets:
            dist.all_reduce(slope)
        return slope.chunk(size())[rank()], None  # bug: attention_keeps_its_part


class PartOfSequence(nn.Module):
    def __init__(self, forgets: bool) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.forgets = forgets
        self.embedding, self.project = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(self.embedding(ids)).chunk(3, -1)
        keys, values = GatheredKeys.apply(key, self.forgets), GatheredKeys.apply(value, self.forgets)
        return self.head(nn.functional.scaled_dot_product_attention(query[None], keys[None], values[None])[0])


def attend_in_parts(forgets: bool = False, scaled: bool = False) -> None:
    net = PartOfSequence(forgets)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for ids in words(seed=9):
        sequence, targets = ids.flatten(), next_of(ids)
        own = slice(rank() * 24 // size(), (rank() + 1) * 24 // size())
        loss = cross_entropy(net(sequence[own]), targets[own], reduction="sum") / len(sequence)
        if scaled:
            loss = loss * size()
        loss.backward()  # bug: sequence_scaled_twice
        for each in net.parameters():
            dist.all_reduce(each.grad)  # bug: sequence_scaled_twice
        update(optimizer)


def attention_keeps_its_part(bug: bool, folder: Path) -> None:
    """Megatron-LM #1464, Transformer Engine #1557 (new in TTrace): wrong gradients of attention."""
    attend_in_parts(forgets=bug)


def sequence_scaled_twice(bug: bool, folder: Path) -> None:
    """Megatron-LM #906: the loss is multiplied by the number of ranks although the gradients are added."""
    attend_in_parts(scaled=bug)


# ---- data parallelism and sharded optimizers -------------------------------------------------------------------------


def batch_scaled_twice(bug: bool, folder: Path) -> None:
    """TTrace: data parallelism, wrong loss scaling. The loss is divided by the ranks, whose gradients DDP averages."""
    torch.manual_seed(10)
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for ids in words():
        loss = cross_entropy(net(ids).flatten(0, 1), next_of(ids))
        if bug:
            loss = loss / size()
        loss.backward()  # bug
        update(optimizer)


def reduced_too_early(bug: bool, folder: Path) -> None:
    """Transformer Engine #1616, for communication that overlaps: gradients are sent before the last part is added."""
    torch.manual_seed(11)
    net = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for ids in words():
        for number, part in enumerate(ids.chunk(2)):
            (cross_entropy(net(part).flatten(0, 1), next_of(part)) / 2).backward()  # bug
            if number == (0 if bug else 1):
                average([*net.parameters()])  # bug
        update(optimizer)


def gathered_too_late(bug: bool, folder: Path) -> None:
    """Megatron-LM #663, #950: a forward uses weights of the step before, since their owner's new ones never arrive."""
    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    every = [*net.parameters()]
    optimizer = torch.optim.Adam(every[rank() :: size()], lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()  # bug
        average(every)
        optimizer.step()
        net.zero_grad()
        for number, each in enumerate(every):
            if not (bug and number == 2):
                dist.broadcast(each.data, number % size())  # bug


def recomputed_from_the_wrong_input(bug: bool, folder: Path) -> None:
    """Megatron-LM #290: a group of layers that is recomputed gives each of them the input of the first."""

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(13)
            self.layers, self.head = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)]), nn.Linear(6, 1)  # bug

        def group(self, first: int, x: torch.Tensor) -> torch.Tensor:
            out = x
            for layer in list(self.layers)[first : first + 2]:
                out = layer(x if bug else out).relu()  # bug
            return out

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for first in (0, 2):
                x = checkpoint(self.group, first, x, use_reentrant=False)
            return self.head(x)

    net = Recomputed()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        average([each for each in net.parameters() if each.grad is not None])
        update(optimizer)


# ---- pipelines -------------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    """The first stage embeds, the last one predicts with a copy of the embedding; both have layers between."""

    def __init__(self, number: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(14)
        table = torch.randn(VOCABULARY, WIDTH)
        torch.manual_seed(15 + number)
        self.number, self.layers = number, nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        if number == 0:
            self.embedding = nn.Embedding(VOCABULARY, WIDTH, _weight=table)  # bug: ends_
        else:
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = nn.Parameter(table.clone())  # bug: ends_

    @property
    def shared(self) -> nn.Parameter:
        return self.embedding.weight if self.number == 0 else self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(x)) if self.number == 0 else self.head(self.layers(x))


def pass_through(stage: Stage, ids: torch.Tensor, other: int) -> None:
    """Run one forward and backward pass over the two stages of a pipeline."""
    middle = torch.empty(*ids.shape, WIDTH)
    if stage.number == 0:
        out = stage(ids)
        dist.send(out.detach().contiguous(), other)
        dist.recv(middle, other)
        out.backward(middle)
    else:
        dist.recv(middle, other)
        middle.requires_grad_()
        cross_entropy(stage(middle).flatten(0, 1), next_of(ids)).backward()
        dist.send(middle.grad.contiguous(), other)


def ends_not_reduced(bug: bool, folder: Path) -> None:
    """Megatron-LM #656: embedding and head are one matrix in two stages, and their gradients are never added."""
    stage = Stage(rank(), 1)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.01)
    for ids in words(seed=16):
        pass_through(stage, ids, 1 - rank())
        if not bug:
            dist.all_reduce(stage.shared.grad)
        update(optimizer)


def ends_reduced_in_parts(bug: bool, folder: Path) -> None:
    """Megatron-LM #844: the data ranks split their gradients before the pipeline's ends add theirs.

    The parts of embedding and head then belong to other ranks, so that sums of different things are added.
    """
    number, data = rank() % 2, [dist.new_group([0, 2]), dist.new_group([1, 3])]
    ends = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = Stage(number, 1)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.01)
    for ids in words(seed=17 + rank() // 2):
        pass_through(stage, ids, rank() + 1 - 2 * number)
        gradient, owner = stage.shared.grad, 2 if number == 0 else 1
        total = gradient.clone()
        dist.all_reduce(total, group=data[number])
        if not bug or rank() == owner:
            gradient.copy_(total)
        dist.all_reduce(gradient, group=ends[rank() // 2])  # bug
        if bug:
            dist.broadcast(gradient, owner, group=data[number])
        gradient /= 2
        for each in stage.layers.parameters():
            dist.all_reduce(each.grad, group=data[number])
            each.grad /= 2
        update(optimizer)


def layers_left_out(bug: bool, folder: Path) -> None:
    """Megatron-LM #1304: layers that the stages do not divide are in no stage."""
    layers = 5
    own = layers // 2 if bug or rank() == 0 else layers - layers // 2  # bug
    stage = Stage(rank(), own)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.01)
    for ids in words(seed=18):
        pass_through(stage, ids, 1 - rank())
        dist.all_reduce(stage.shared.grad)
        update(optimizer)


DETECTED = "detected"

CASES = [
    Case(wrong_embedding_mask, "TP: embedding mask", "words", DETECTED, "not found"),
    Case(recomputed_from_the_wrong_input, "Megatron-LM #290", "unused", DETECTED, "found, possible"),
    Case(sequence_scaled_twice, "Megatron-LM #906", "sums", DETECTED, "not found"),
    Case(batch_scaled_twice, "DP: loss scaling", "sums", DETECTED, "not found"),
    Case(ends_reduced_in_parts, "Megatron-LM #844", "tied", DETECTED, "not found", world=4),
    Case(router_not_reduced, "Megatron-LM #599", "gradients", DETECTED, "found, likely"),
    Case(gathered_too_late, "Megatron-LM #663, #950", "weights-forward", DETECTED, "not found"),
    Case(ends_not_reduced, "Megatron-LM #656", "tied", DETECTED, "not found"),
    Case(layers_left_out, "Megatron-LM #1304", "", DETECTED, "not found"),
    Case(norm_not_reduced, "Megatron-LM #1446", "gradients", "detected, new", "not found"),
    Case(
        attention_keeps_its_part,
        "Megatron-LM #1464, TE #1557",
        "one-gradients",
        "detected, new",
        "not found",
        against_one=True,
    ),
    Case(reduced_too_early, "Transformer Engine #1616", "gradients", DETECTED, "found, likely"),
    Case(norm_reduced_twice, "Megatron-LM #1528", "sums", "detected, new", "not found"),
]
