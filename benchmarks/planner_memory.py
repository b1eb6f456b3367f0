"""Compare the planner's memory with torch's own memory tracker, on full-size models that need no memory here.

    python benchmarks/planner_memory.py [--only WORD ...] [--csv FILE]

Each case builds a model of fake tensors, applies `fully_shard` on a fake process group of up to 512 ranks, as
torchtitan does (each layer, then the model; bf16 with gradients reduced in float32), and runs one forward and backward
pass of the second micro-batch under `FSDPMemTracker`. AdamW's two moments are added: the tracker counts the whole
tensors that DTensor's rules create on its way as optimizer state. Compared is the peak, without what no tracker
sees: CUDA's context and unused blocks of the allocator.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.memory import step_memory
from frog.plan.estimate.model import PlannedModel
from frog.plan.estimate.rows import planned_run

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
CASES = [
    (shape, world_size, recompute, micro_batch)
    for shape, world_size, recompute, micro_batch in itertools.product(SHAPES, (8, 64, 512), ("none", "full"), (1, 2))
    if not (shape.layers == 80 and micro_batch == 2)
]
CASES += [(shape, 8, "alternate", 1) for shape in SHAPES if shape.name in ("Llama 3.2 1B", "Mistral 7B", "Llama 3 8B")]
CASES.append((SHAPES[1], 8, "alternate", 2))


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
        ctx.save_for_backward(x, weight, torch.empty(*x.shape[:-1], 1))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        _, weight, _ = ctx.saved_tensors
        return torch.empty_like(grad), torch.empty_like(weight)


class Layer(nn.Module):
    """A layer as torchtitan's: attention and FFN, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.head_dim = shape, shape.hidden // shape.heads
        norm, bias = (FusedRMSNorm, False) if shape.gated else (nn.LayerNorm, True)
        self.norm1, self.norm2 = norm(shape.hidden), norm(shape.hidden)
        self.q = nn.Linear(shape.hidden, shape.hidden, bias)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * self.head_dim, bias)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * self.head_dim, bias)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias)
        self.up, self.down = nn.Linear(shape.hidden, shape.ffn, bias), nn.Linear(shape.ffn, shape.hidden, bias)
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, shape.ffn, False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attend(self.norm1(x_BTD))
        h_BTD = self.norm2(x_BTD)
        inner = F.silu(self.gate(h_BTD)) * self.up(h_BTD) if self.shape.gated else F.gelu(self.up(h_BTD))
        return x_BTD + self.down(inner)

    def attend(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = (f(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.shape.gated:
            q, k = rotate(q), rotate(k)
        y = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        return self.o(y.transpose(1, 2).reshape(B, T, D))


def rotate(x: Tensor) -> Tensor:
    """Rotate pairs by their positions, in float32, as torchtitan does; the result has x's dtype."""
    angles = torch.ones(x.shape[-2], x.shape[-1] // 2, dtype=torch.complex64)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2).type_as(x)


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
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


def tracked(shape: Shape, world_size: int, recompute: str, micro_batch: int) -> dict[str, float]:
    """Return the bytes of the tracker's peak by kind, with the moments."""
    mesh = init_device_mesh("cpu", (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Model(shape)
        if recompute != "none":
            keeps = {"context_fn": every_second_product} if recompute == "alternate" else {}
            for number, layer in enumerate(model.layers):
                model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False, **keeps)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        ids = torch.zeros(micro_batch, shape.seq_len, dtype=torch.long)
        tracker = FSDPMemTracker(model)
        tracker.track_inputs((ids,))
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                logits = model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
                del logits
                loss.backward()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        moments = 8 * sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
    return {str(kind).split(".")[-1].lower(): float(size) for kind, size in peak.items()} | {"moments": moments}


def every_second_product() -> tuple[Any, Any]:
    """Keep the outputs of attention and of every second product, as torchtitan's selective recomputation does."""
    products = itertools.count(1), itertools.count(1)

    def policy(ctx: Any, op: Any, *_: object, **__: object) -> CheckpointPolicy:
        is_kept = op == torch.ops.aten._scaled_dot_product_flash_attention.default
        if op == torch.ops.aten.mm.default:
            is_kept = next(products[ctx.is_recompute]) % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def planned(shape: Shape, world_size: int, recompute: str, micro_batch: int) -> dict[str, float]:
    """Return the planner's bytes by kind."""
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
        "n_gpus": str(world_size),
        "global_batch": str(2 * micro_batch * world_size),
        "micro_batch": str(micro_batch),
        "recompute": recompute,
        "zero": "3",
        "seq_parallel": "no",
    }
    return dict(vars(step_memory(planned_run(model, cells, clusters()["h100x8"]).step)))


def compare(only: list[str]) -> Iterator[dict[str, str | float]]:
    for shape, world_size, recompute, micro_batch in CASES:
        name = f"{shape.name}, {world_size} GPUs, {recompute}, micro-batch {micro_batch}"
        if only and not any(word in name for word in only):
            continue
        start = time.perf_counter()
        found, plan = (
            tracked(shape, world_size, recompute, micro_batch),
            planned(shape, world_size, recompute, micro_batch),
        )
        torchs = found["total"] + found["moments"]
        ours = sum(size for kind, size in plan.items() if kind != "allocator")
        yield {
            "case": name,
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
    print(f"{'case':<48} {'torch GiB':>9} {'plan GiB':>9} {'error %':>8} {'s':>6}")
    for row in compare(args.only):
        rows.append(row)
        print(
            "{case:<48} {torch_gib:>9.2f} {plan_gib:>9.2f} {error_percent:>+8.1f} {seconds:>6.1f}".format(**row),
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
