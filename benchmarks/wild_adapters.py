"""Adapters of public solutions to the exercises' interfaces. `wild_solutions.py` adds them to a solution's file.

Words in capitals are replaced by a solution's entry in `wild_solutions.toml`.
"""

from __future__ import annotations

from typing import NamedTuple


class Adapter(NamedTuple):
    """Code before a solution: what its files import from others; and after it: the exercise's interface."""

    before: str
    after: str


ABSENT = """
import contextlib

class Range(contextlib.ContextDecorator):
    def __init__(self, *words): ...
    def __enter__(self): ...
    def __exit__(self, *error): ...

class nvtx:
    range = annotate = Range
    range_push = range_pop = push_range = pop_range = mark = staticmethod(lambda *words, **more: None)

def override(function):
    return function
"""
"""Names that a CPU build of torch, or Python 3.11, does not have."""

DATA_PARALLEL = '''
import torch
from torch import nn

REPLICAS = {}
STARTS = "on_train_batch_start", "reset_buckets", "reset", "start_gradient_synchronization", "reset_gradient"
"""What solutions call their function for the beginning of a step."""


def replica(model):
    """Wrap a model. The constructor sends rank 0's weights, which the exercise does not ask for: put them back."""
    weights = [p.detach().clone() for p in model.parameters()]
    wrapped = NAME(model, *MORE)
    with torch.no_grad():
        for p, value in zip(model.parameters(), weights):
            p.copy_(value)
    return wrapped


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def send(wrapped, model, gradients):
    """Let backward find these gradients in the same order on all ranks, with the wrapper's hooks in place.

    The assignment promises a gradient for each parameter on every rank: zeros where this rank's batch gave none.
    """
    found = [torch.zeros_like(p) if g is None else g for p, g in zip(trained(model), gradients)]
    for p in trained(model):
        p.grad = None
    for name in STARTS:
        if hasattr(type(wrapped), name):
            getattr(wrapped, name)()
    sum((p * g).sum() for p, g in zip(trained(model), found)).backward()
    wrapped.finish_gradient_synchronization()


def average_gradients(model):
    own = [None if p.grad is None else p.grad.clone() for p in trained(model)]  # before a constructor replaces them
    send(replica(model), model, own)


def train_step(model, optimizer, x_BD, y_BV):
    if id(model) not in REPLICAS:
        REPLICAS[id(model)] = replica(model)
    copies = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    loss = nn.functional.mse_loss(torch.func.functional_call(model, copies, (x_BD,)), y_BV)
    own = torch.autograd.grad(loss, [copy for copy in copies.values() if copy.requires_grad], allow_unused=True)
    with torch.no_grad():
        REPLICAS[id(model)](x_BD)
    send(REPLICAS[id(model)], model, own)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
'''

SHARDED_OPTIMIZER = """
import torch


class ShardedAdam:
    def __init__(self, model, lr):
        self.optimizer = NAME([p for p in model.parameters() if p.requires_grad], torch.optim.Adam, lr=lr)

    def step(self):
        self.optimizer.step()
"""

LAYERS = '''
import torch
from torch import nn


class Linear(nn.Linear):
    """The assignment's linear layer, which has no bias."""

    def __init__(self, d_in, d_out):
        super().__init__(d_in, d_out, bias=False)

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Embedding):
    pass


def einsum(*tensors_and_pattern):
    """Do what einops does: its axes have names of more than one letter."""
    *tensors, pattern = tensors_and_pattern
    names = sorted(set(pattern.replace("->", " ").replace(",", " ").split()) - {"..."})
    letters = dict(zip(names, "abcdefghijkl")) | {"...": "..."}
    terms = ["".join(letters[name] for name in term.split()) for term in pattern.replace("->", ",").split(",")]
    return torch.einsum(",".join(terms[:-1]) + "->" + terms[-1], *tensors)
'''

FULLY_SHARDED = '''
import copy
import gc

import torch
import torch.distributed as dist
from torch import nn


class Biased(nn.Module):
    """A linear layer in the assignment's form: without a bias, which is a parameter outside of it."""

    def __init__(self, whole):
        super().__init__()
        self.linear, self.bias = Linear(whole.in_features, whole.out_features), whole.bias
        self.linear.weight = whole.weight

    def forward(self, x):
        y = self.linear(x)
        return y if self.bias is None else y + self.bias


def in_its_form(model):
    """Replace the layers by the assignment's. It shares no weight: the output layer gets a copy of the embedding's."""
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Biased(child))
            elif type(child) is nn.Embedding:
                own = Embedding(child.num_embeddings, child.embedding_dim)
                own.weight = child.weight
                setattr(module, name, own)


class Inner(nn.Module):
    """What the solution wraps: the model's children, and its forward pass."""

    def __init__(self, model):
        super().__init__()
        self.body = type(model).forward
        for name, child in model.named_children():
            self.add_module(name, child)

    def forward(self, *inputs):
        return self.body(self, *inputs)


def layout(model):
    """Wrap a copy whose elements are numbered; return what each of the wrapper's parameters holds: (name, start, num).

    None for a parameter that is frozen, or of padding alone. Padding is zero.
    """
    numbered, starts, total = copy.deepcopy(model), {}, 1
    for name, p in numbered.named_parameters():
        if p.requires_grad:
            starts[name] = total, p.numel()
            p.data = torch.arange(total, total + p.numel(), dtype=torch.float32).view(p.shape)
            total += p.numel()
    found = [place(p, starts) for p in NAME(Inner(numbered)).parameters()]
    in_parts = {one[0] for one in found if one and one[2] < starts[one[0]][1]}
    return [one if one and (one[0] not in in_parts or one[2] < starts[one[0]][1]) else None for one in found]


def place(p, starts):
    ids = p.data.flatten()
    num = int((ids > 0).sum())
    if not p.requires_grad or num == 0:
        return None
    first = int(ids[0])
    if not torch.equal(ids[:num], torch.arange(first, first + num, dtype=torch.float32)):
        raise ValueError("a shard is not one range of the flattened parameter")
    name = next(name for name, (start, numel) in starts.items() if start <= first < start + numel)
    return name, first - starts[name][0], num


class Part:
    """A parameter of the wrapper, and what this rank owns of it: a shard, or a part of what all ranks have."""

    def __init__(self, parameter, name, start, num, is_copied):
        rank, size = dist.get_rank(), dist.get_world_size()
        self.parameter, self.name, self.num_held, self.is_copied = parameter, name, parameter.numel(), is_copied
        self.first, self.end = (rank * num // size, (rank + 1) * num // size) if is_copied else (0, num)
        self.start = start + self.first
        self.tensor, self.total = nn.Parameter(self.values()), None

    def values(self):
        if self.parameter.numel() != self.num_held:
            text = f"{self.name}: the wrapper's parameter has {self.parameter.numel()} elements after backward"
            raise RuntimeError(f"{text}, and {self.num_held} before forward")
        return self.parameter.data.flatten()[self.first : self.end]

    def take(self):
        """Add the gradient of a micro-batch to the step's."""
        if self.parameter.grad is not None:
            own = self.parameter.grad.detach().flatten()[self.first : self.end].clone()
            self.total = own if self.total is None else self.total + own
            self.parameter.grad = None

    def finish(self, other=None):
        """Leave the step's gradient at what this rank owns; other: the part of a copy of the weight."""
        self.tensor.data = self.values()
        totals = [one.total for one in (self, other) if one is not None and one.total is not None]
        self.tensor.grad = sum(totals) if totals else torch.zeros_like(self.tensor)
        self.total = None


class Strategy:
    """Each micro-batch is a step of the wrapper's; it does not add up several."""

    def __init__(self, wrapper, parts):
        self.wrapper, self.parts = wrapper, parts
        weights = {part.name: part for part in parts}
        self.embedding, self.head = weights.get("embedding.weight"), weights.get("head.linear.weight")

    def owned(self):
        rest = [part for part in self.parts if part is not self.head and part.tensor.numel()]
        return [(part.name.replace(".linear.", "."), part.start, part.tensor) for part in rest]

    def after_backward(self, last):
        if "FINISH":
            getattr(self.wrapper, "FINISH")()
        for part in self.parts:
            part.take()

    def reduce(self):
        for part in self.parts:
            if part is not self.head:
                part.finish(self.head if part is self.embedding else None)
        if self.head:
            self.head.total = None

    def gather(self):
        """Give all ranks what each owns of the parameters that all have; and the output layer the embedding."""
        with torch.no_grad():
            if self.head:
                self.head.values().copy_(self.embedding.values())
            copied = [part for part in self.parts if part.is_copied]
            for part in copied:
                own = part.values().clone()
                part.parameter.zero_()
                part.values().copy_(own)
            if copied:
                flat = torch.cat([part.parameter.flatten() for part in copied])
                dist.all_reduce(flat)
                for part, values in zip(copied, flat.split([part.num_held for part in copied])):
                    part.parameter.copy_(values.view_as(part.parameter))


def build(model, group):
    in_its_form(model)
    places = layout(model)
    whole = {name: p.numel() for name, p in model.named_parameters()}
    sharded = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, (Linear, Embedding))}
    inner = Inner(model)
    wrapper = NAME(inner)
    for name, child in inner.named_children():
        setattr(model, name, child)
    model.forward = lambda *inputs: wrapper(*inputs)
    parts = [
        Part(p, *held, is_copied=held[2] == whole[held[0]] and held[0] not in sharded)
        for p, held in zip(wrapper.parameters(), places)
        if held
    ]
    gc.collect()
    return Strategy(wrapper, parts)
'''

PROCESS_GROUPS = '''
import torch
import torch.distributed as dist


class Manager:
    """The attributes of picotron's process groups, with one group of all ranks."""

    tp_world_size = pp_world_size = property(lambda _: dist.get_world_size())
    tp_rank = pp_rank = property(lambda _: dist.get_rank())
    tp_group = property(lambda _: dist.group.WORLD)
    dp_world_size = cp_dp_world_size = 1
    pp_is_first_stage = property(lambda _: dist.get_rank() == 0)
    pp_is_last_stage = property(lambda _: dist.get_rank() == dist.get_world_size() - 1)
    pp_prev_rank = property(lambda _: dist.get_rank() - 1)
    pp_next_rank = property(lambda _: dist.get_rank() + 1)


class pgm:
    process_group_manager = Manager()


get_model_parallel_group = lambda: dist.group.WORLD
get_model_parallel_rank = lambda: dist.get_rank()
get_model_parallel_world_size = lambda: dist.get_world_size()


class Backend:
    """The operations that one repository calls on an object."""

    def all_reduce(self, tensor, group=None, op="sum", async_op=False):
        return dist.all_reduce(tensor, dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, async_op=async_op)

    def send(self, tensor, dst, group=None):
        dist.send(tensor, dst)

    def recv(self, tensor, src, group=None):
        dist.recv(tensor, src)
        return tensor
'''

LINEAR_LAYERS = '''
import torch.distributed as dist
from torch import nn

class CopyToRanks:
    """The solution has it in its layers."""


SumOfRanks = CopyToRanks


def part_of(width):
    rank, size = dist.get_rank(), dist.get_world_size()
    return slice(rank * width // size, (rank + 1) * width // size)


def given(layer, weight, bias):
    """Give a layer the exercise's part of a weight, and a bias if it has one on this rank."""
    layer.weight = nn.Parameter(weight.detach().clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def width_of(part):
    """Return a width that the ranks divide, as the solution's constructor wants: of a part on each rank."""
    return max(1, part.stop - part.start) * dist.get_world_size()


def ColumnParallelLinear(whole):
    part, has_bias = part_of(whole.out_features), whole.bias is not None
    width = width_of(part)
    return given(COLUMN, whole.weight[part], whole.bias[part] if has_bias else None)


def RowParallelLinear(whole):
    part, has_bias = part_of(whole.in_features), whole.bias is not None
    width = width_of(part)
    return given(ROW, whole.weight[:, part], whole.bias)
'''

VOCABULARY = '''
import math


class VocabUtility:
    """Megatron-LM's, where all parts have one size; the exercise says where this rank's begins."""

    first = 0

    @classmethod
    def vocab_range_from_per_partition_vocab_size(cls, size, *rank_and_world):
        return cls.first, cls.first + size

    get_vocab_range_idx_from_partition_size = vocab_range_from_per_partition_vocab_size
'''

VOCABULARY_LOSS = '''
import torch
import torch.distributed as dist
from torch import nn

IGNORED = -100


def padded(logits, labels, first):
    """Give all ranks parts of one size, as the solution assumes: fill up with -inf, and renumber the labels."""
    own = torch.tensor([first, first + logits.shape[1]])
    bounds = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(bounds, own)
    width = max(int(end - start) for start, end in bounds)
    numbers = labels.clone()
    for rank, (start, end) in enumerate(bounds):
        is_here = (labels >= start) & (labels < end)
        numbers[is_here] = labels[is_here] - start + rank * width
    return nn.functional.pad(logits, (0, width - logits.shape[1]), value=-math.inf), numbers


def vocabulary_loss(logits_Nv, labels_N, first):
    """Pass contiguous tensors, which a layer's output is; take the mean where the solution returns each loss."""
    logits, labels = logits_Nv.clone(memory_format=torch.contiguous_format), labels_N.contiguous()
    VocabUtility.first = first
    loss = CALL
    return loss if loss.dim() == 0 else loss[labels != IGNORED].mean()


largest_logit = sum_of_exponentials = logit_of_label = vocabulary_loss
'''

SCHEDULE = '''
def counted(kinds):
    """Number the passes of each kind."""
    found = {"F": 0, "B": 0}
    for kind in kinds:
        yield kind, found[kind]
        found[kind] += 1


def passes(rank, num_ranks, num_micro):
    return CALL


def one_f_one_b(num_ranks, num_micro):
    return [
        [Action(kind, rank, micro) for kind, micro in passes(rank, num_ranks, num_micro)] for rank in range(num_ranks)
    ]
'''
"""Comes after the exercise's reference too, which has the two other functions."""

PIPELINE = '''
import torch
import torch.distributed as dist
from torch import nn


class AsModule(nn.Module):
    """A stage as a module of its own: `of` turns its input into tokens on the first rank."""

    def __init__(self, stage, of=lambda x: x):
        super().__init__()
        self.stage, self.of = stage, of if dist.get_rank() == 0 else lambda x: x

    def forward(self, x, **more):
        return self.stage(self.of(x))


def train_step(stage, batch, micro_size, ends):
    """All micro-batches have one size: the last one is filled up with samples whose labels are ignored."""
    rank, size, missing = dist.get_rank(), dist.get_world_size(), -len(batch) % micro_size
    labels = nn.functional.pad(batch[:, 1:], (0, 0, 0, missing), value=-100).split(micro_size)
    tokens = nn.functional.pad(batch[:, :-1], (0, 0, 0, missing)).split(micro_size)
    shape, total, losses = (micro_size, batch.shape[1] - 1, stage.width), batch[:, 1:].numel(), []

    def loss_of(logits, labels, *more):
        """Return a micro-batch's part of the mean over all samples."""
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / total
        losses.append(loss.detach())
        return loss

    loss = CALL
    if stage.tied is not None:
        dist.all_reduce(stage.tied.grad, group=ends)
    return float(loss) if rank == size - 1 else 0.0


Runner = one_f_one_b = train_step
'''

ADAPTERS = {
    "lab2/01_average_gradients": Adapter("", DATA_PARALLEL),
    "lab4/02_shard_optimizer": Adapter("", SHARDED_OPTIMIZER),
    "lab4/12_own_fsdp": Adapter(LAYERS, FULLY_SHARDED),
    "lab5/01_column_and_row": Adapter(PROCESS_GROUPS, LINEAR_LAYERS),
    "lab5/03_vocabulary_loss": Adapter(PROCESS_GROUPS + VOCABULARY, VOCABULARY_LOSS),
    "lab5/05_schedule_as_data": Adapter("", SCHEDULE),
    "lab5/06_run_1f1b": Adapter(PROCESS_GROUPS, PIPELINE),
}
