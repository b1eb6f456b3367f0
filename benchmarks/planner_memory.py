"""Compare the planner's memory with torch's own memory tracker, on full-size models that need no memory here.

    python benchmarks/planner_memory.py [--only WORD ...] [--csv FILE]

Each case builds a model of fake tensors and splits it on a fake process group of up to 512 ranks, as torchtitan does:
tensor parallelism with a parallel loss, then `fully_shard` of each layer and of the model, in bf16 with gradients
reduced in float32. It runs the forward and backward passes of two micro-batches under `FSDPMemTracker`. AdamW's two
moments are added, 8 bytes for each parameter of a rank. Compared is the peak, without what no tracker sees: CUDA's
context and unused blocks of the allocator.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.rows import planned_run
from frog.plan.model import PlannedModel

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """A model's sizes, by the names of a table's columns; `gated` also stands for RMSNorm and rotary positions."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    gated: bool = True
    tied: bool = False


SHAPES = [
    Shape("GPT-2 XL", 48, 1600, 25, 25, 6400, 50257, 1024, gated=False, tied=True),
    Shape("Llama 3.2 1B", 16, 2048, 32, 8, 8192, 128256, 8192, tied=True),
    Shape("Mistral 7B", 32, 4096, 32, 8, 14336, 32000, 4096),
    Shape("Qwen2.5 7B", 28, 3584, 28, 4, 18944, 152064, 4096),
    Shape("Llama 3 8B", 32, 4096, 32, 8, 14336, 128256, 8192),
    Shape("Llama 2 13B", 40, 5120, 40, 40, 13824, 32000, 4096),
    Shape("Llama 3 70B", 80, 8192, 64, 8, 28672, 128256, 8192),
]


@dataclass(frozen=True)
class Case:
    """A run; `tp` of the ranks split each layer, the others share the batch."""

    shape: Shape
    world_size: int
    recompute: str
    micro_batch: int
    tp: int = 1
    sequence_parallel: bool = False

    @property
    def dp(self) -> int:
        return self.world_size // self.tp

    @property
    def name(self) -> str:
        tensor = f"tp {self.tp}{' with sp' if self.sequence_parallel else ''}, " if self.tp > 1 else ""
        return f"{self.shape.name}, {self.world_size} GPUs, {tensor}{self.recompute}, micro-batch {self.micro_batch}"


LLAMA_1B, LLAMA_8B = SHAPES[1], SHAPES[4]
CASES = [
    Case(shape, world_size, recompute, micro_batch)
    for shape, world_size, recompute, micro_batch in itertools.product(SHAPES, (8, 64, 512), ("none", "full"), (1, 2))
    if not (shape.layers == 80 and micro_batch == 2)
]
CASES += [
    Case(shape, 8, "alternate", 1) for shape in SHAPES if shape.name in ("Llama 3.2 1B", "Mistral 7B", "Llama 3 8B")
]
CASES.append(Case(LLAMA_1B, 8, "alternate", 2))
CASES += [
    Case(LLAMA_1B, tp, recompute, 1, tp, sequence_parallel)
    for tp, sequence_parallel, recompute in itertools.product((2, 4, 8), (False, True), ("none", "full"))
]
CASES += [
    Case(LLAMA_1B, 8 * tp, recompute, 1, tp, True) for tp, recompute in itertools.product((2, 4, 8), ("none", "full"))
]
CASES += [
    Case(LLAMA_8B, dp * 8, "none", 1, 8, sequence_parallel)
    for dp, sequence_parallel in itertools.product((1, 8), (False, True))
]
CASES += [Case(LLAMA_8B, 16, "full", 1, 2, True), Case(LLAMA_8B, 4, "none", 1, 4, True)]
CASES.append(Case(LLAMA_1B, 64, "alternate", 1, 8, True))


class FusedRMSNorm(nn.Module):
    """RMSNorm that keeps what CUDA's kernel keeps; on CPUs torch computes it in steps, and keeps each result."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return KeepsInput.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]


class KeepsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, torch.empty_like(x[..., :1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        _, weight, _ = ctx.saved_tensors
        return torch.empty_like(grad), torch.empty_like(weight)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_rotary, self.head_dim, bias = shape.gated, shape.hidden // shape.heads, not shape.gated
        self.q = nn.Linear(shape.hidden, shape.hidden, bias)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * self.head_dim, bias)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * self.head_dim, bias)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        q, k, v = (f(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.is_rotary:
            q, k = rotate(q), rotate(k)
        y = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


class FFN(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        bias = not shape.gated
        self.up, self.down = nn.Linear(shape.hidden, shape.ffn, bias), nn.Linear(shape.ffn, shape.hidden, bias)
        self.gate = nn.Linear(shape.hidden, shape.ffn, False) if shape.gated else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x_BTD)))
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Layer(nn.Module):
    """A layer as torchtitan's: attention and FFN, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm = FusedRMSNorm if shape.gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(shape.hidden), norm(shape.hidden)
        self.attention, self.ffn = Attention(shape), FFN(shape)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        return x_BTD + self.ffn(self.norm2(x_BTD))


def rotate(x: Tensor) -> Tensor:
    """Rotate pairs by their positions, in float32, as torchtitan does; the result has x's dtype."""
    angles = torch.ones(x.shape[-2], x.shape[-1] // 2, dtype=torch.complex64)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2).type_as(x)


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = None if shape.gated else nn.Embedding(shape.seq_len, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = (FusedRMSNorm if shape.gated else nn.LayerNorm)(shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.vocab, False)
        if shape.tied:
            self.output.weight = self.tokens.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        x = self.tokens(ids_BT)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids_BT.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def tracked(case: Case) -> dict[str, float]:
    """Return the bytes of the tracker's peak by kind, with the moments."""
    mesh = init_device_mesh("cpu", (case.dp, case.tp), mesh_dim_names=("dp", "tp"))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        ids = torch.zeros(case.micro_batch, case.shape.seq_len, dtype=torch.long)
    model = sharded(case, mesh["dp"], mesh["tp"], fake)
    with fake:
        tracker = FSDPMemTracker(model)
        tracker.track_inputs((ids,))
        with untracked_rules(), tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                take_step(model, ids, case)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        moments = 8 * sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
    return {str(kind).split(".")[-1].lower(): float(size) for kind, size in peak.items()} | {"moments": moments}


@contextmanager
def untracked_rules() -> Iterator[None]:
    """Let DTensor derive shapes outside of the tracker: its rules run each operation on whole fake tensors."""
    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def derive(self: ShardingPropagator, op_schema: Any) -> Any:
        with _disable_current_modes():
            return original(self, op_schema)

    ShardingPropagator._propagate_tensor_meta_non_cached = derive  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = original  # type: ignore[method-assign]


def sharded(case: Case, dp: DeviceMesh, tp: DeviceMesh, fake: FakeTensorMode) -> nn.Module:
    """Return a case's model: split over tp, then each layer and the model over dp.

    `fully_shard` runs outside of the fake mode, since it searches the mesh's ranks; the parameters are fake.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with fake:
        model = Model(case.shape)
        if case.tp > 1:
            split_tensors(model, tp, case.sequence_parallel)
        if case.recompute != "none":
            keeps = {"context_fn": every_second_product} if case.recompute == "alternate" else {}
            for number, layer in enumerate(model.layers):
                model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False, **keeps)
    for layer in model.layers:
        fully_shard(layer, mesh=dp, mp_policy=policy)
    fully_shard(model, mesh=dp, mp_policy=policy)
    return model


def split_tensors(model: Model, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Apply tensor parallelism as torchtitan does: columns, then rows; the logits stay split over the vocabulary."""
    stream = Shard(1) if sequence_parallel else Replicate()
    gathers = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    norm = {"norm1": SequenceParallel(), "norm2": SequenceParallel()} if sequence_parallel else {}
    columns = ("attention.q", "attention.k", "attention.v", "ffn.gate", "ffn.up")
    for layer in model.layers:
        plan = {name: ColwiseParallel() for name in columns} | {"attention": gathers, "ffn": gathers} | norm
        plan |= {name: RowwiseParallel(output_layouts=stream) for name in ("attention.o", "ffn.down")}
        parallelize_module(layer, mesh, plan)
    ends = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)}
    ends |= {"output": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(model, mesh, ends | ({"norm": SequenceParallel()} if sequence_parallel else {}))
    if model.shape.tied:
        model.output.weight = model.tokens.weight


def take_step(model: nn.Module, ids: Tensor, case: Case) -> None:
    """Run a forward and a backward pass."""
    with loss_parallel() if case.tp > 1 else nullcontext():
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
        del logits
        loss.backward()


def every_second_product() -> tuple[Any, Any]:
    """Keep the outputs of attention and of every second product, as torchtitan's selective recomputation does."""
    products = itertools.count(1), itertools.count(1)

    def policy(ctx: Any, op: Any, *_: object, **__: object) -> CheckpointPolicy:
        is_kept = op == torch.ops.aten._scaled_dot_product_flash_attention.default
        if op == torch.ops.aten.mm.default:
            is_kept = next(products[ctx.is_recompute]) % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def planned(case: Case) -> dict[str, float]:
    """Return the planner's bytes by kind."""
    shape = case.shape
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated", "tied")
    model = PlannedModel(
        **{name: getattr(shape, name) for name in names},
        head_dim=shape.hidden // shape.heads,
        biases=not shape.gated,
        positions=0 if shape.gated else shape.seq_len,
    )
    cells = {
        "software": "FSDP2",
        "seq_len": str(shape.seq_len),
        "n_gpus": str(case.world_size),
        "tp": str(case.tp),
        "global_batch": str(2 * case.micro_batch * case.dp),
        "micro_batch": str(case.micro_batch),
        "recompute": case.recompute,
        "zero": "3",
        "seq_parallel": "yes" if case.sequence_parallel else "no",
    }
    return dict(vars(planned_run(model, cells, clusters()["h100x8"]).step.memory))


def compare(only: list[str]) -> Iterator[dict[str, str | float]]:
    for case in CASES:
        if only and not any(word in case.name for word in only):
            continue
        start = time.perf_counter()
        found, plan = tracked(case), planned(case)
        torchs = found["total"] + found["moments"]
        ours = sum(size for kind, size in plan.items() if kind != "allocator")
        yield {
            "case": case.name,
            "torch_gib": torchs / GIB,
            "plan_gib": ours / GIB,
            "error_percent": 100 * (ours / torchs - 1),
            "seconds": time.perf_counter() - start,
            **{f"torch_{kind}": size / GIB for kind, size in found.items() if kind != "total"},
            **{f"plan_{kind}": size / GIB for kind, size in plan.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=512)
    rows = []
    print(f"{'case':<58} {'torch GiB':>9} {'plan GiB':>9} {'error %':>8} {'s':>6}")
    for row in compare(args.only):
        rows.append(row)
        print(
            "{case:<58} {torch_gib:>9.2f} {plan_gib:>9.2f} {error_percent:>+8.1f} {seconds:>6.1f}".format(**row),
            flush=True,
        )
    errors = [abs(float(row["error_percent"])) for row in rows]
    print(f"\n{len(rows)} cases: error {statistics.fmean(errors):.1f} % on average, at most {max(errors):.1f} %")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
