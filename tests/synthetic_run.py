"""Synthetic run folders, written with the real EventWriter, without a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from frog.core.config import RunConfig, StrategyConfig, TrainConfig, to_dict
from frog.core.config.model import ModelConfig
from frog.core.files import sha256_file, write_json
from frog.core.runs import EventWriter
from frog.core.runs.folder import RunFolder
from frog.core.runs.manifest import Manifest, manifest_hash
from frog.core.runs.record import FORMAT as RUN_FORMAT

START_UNIX_NS = 1_750_000_000_000_000_000
START_MONO_NS = 5_000_000_000_000
MS = 1_000_000

SPAN_MS = {"data": 0.4, "forward": 9.0, "backward": 16.0, "reduce": 6.0, "optimize": 2.5, "zero": 0.2}


GRADIENT_BYTES = 4 * 664_192
"""Parameters of the model below, counted by hand: 2048*128 + 2*(4*128*128 + 3*128*352 + 2*128) + 128."""

MEMORY = {
    "parameters": GRADIENT_BYTES,
    "gradients": GRADIENT_BYTES,
    "optimizer": 2 * GRADIENT_BYTES,
    # Activations of 4 sequences of 64 tokens, N = 256: two layers of 8 N*128 + 4 N*352 + 6 N, the tables, the head.
    "activations": 4 * (2 * (8 * 256 * 128 + 4 * 256 * 352 + 6 * 256) + 2 * 64 * 128 + (2 * 256 + 2048) * 128 + 256),
}
"""Memory of a rank in a world of four that trains this model with ddp."""


@dataclass
class Synthetic:
    """The properties of a synthetic run. `segments` are (world size, from step, last step taken)."""

    segments: list[tuple[int, int, int]] = field(default_factory=lambda: [(4, 0, 60)])
    eval_every: int | None = 20
    checkpoint_every: int | None = 20
    status: str | None = "completed"
    seed: int = 0
    error: dict[str, Any] | None = None
    sample_text: str = "{prompt}frog jumps {step} times, and the pond is still."
    loss_noise: float = 0.0
    """Added to every loss from `noise_from_step` on."""
    noise_from_step: int = 0
    num_layers: int = 2
    train: TrainConfig = field(default_factory=TrainConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    collectives: list[tuple[str, str, int]] = field(default_factory=lambda: [("all_reduce", "dp", GRADIENT_BYTES)])
    """Collectives of each step, one after another in its reduce phase: operation, axis, payload."""
    wait_share: float = 1.0
    """Fraction of a collective's time in which its rank waits."""
    memory: dict[str, int] | None = field(default_factory=lambda: dict(MEMORY))
    overflows: tuple[int, ...] = ()
    """fp16: the skipped steps, each of which halves the loss scale."""
    members: list[list[int] | None] = field(default_factory=list)
    """Permanent numbers of each segment's members, if the world changes while processes continue; None: resumed."""
    num_micro: int = 1
    """Number of micro-batches: forward and backward spans alternate."""


def make_run(path: Path, kind: Synthetic | None = None) -> RunFolder:
    kind = kind or Synthetic()
    folder = RunFolder(path)
    model = ModelConfig(2048, 128, 352, kind.num_layers, 4, 4, 256)
    last_step = kind.segments[-1][2]
    write_json(
        folder.run_json,
        {
            "format": RUN_FORMAT,
            "name": path.name,
            "created": "2026-11-21T04:12:00+00:00",
            "argv": ["frog", "train", "config/demo.toml"],
            "config": to_dict(
                RunConfig(
                    model=model, name=path.name, train=replace(kind.train, steps=last_step), strategy=kind.strategy
                )
            ),
            "num_parameters": model.num_parameters(),
            "data": {
                "name": "python-docs",
                "data_sha256": "d" * 64,
                "train_tokens": 1_234_567,
                "heldout_tokens": 65_432,
                "vocab_size": 2048,
            },
            "versions": {"frog": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"},
            "segments": [
                {
                    "world_size": world,
                    "mesh": _mesh(kind.strategy, world),
                    "num_nodes": 1,
                    "device": "cpu",
                    "threads": 1,
                    "from_step": from_step,
                    "host": "pond",
                    "started": "2026-11-21T04:12:00+00:00",
                }
                for world, from_step, _ in kind.segments
            ],
        },
    )
    for index, (world, from_step, last) in enumerate(kind.segments):
        for rank in range(world):
            _write_rank(folder, kind, index, rank, world, from_step, last)
    if kind.checkpoint_every:
        for step in range(kind.checkpoint_every, last_step + 1, kind.checkpoint_every):
            write_checkpoint(folder, step, kind.segments[-1][0], weights(step, kind))
    if kind.status is not None:
        write_json(folder.record_json, _record(kind, last_step))
    return folder


def mean_loss(step: int, kind: Synthetic) -> float:
    noise = kind.loss_noise if step >= kind.noise_from_step else 0.0
    wobble = float(np.random.default_rng([kind.seed, step]).normal(0, 0.05))
    return 2.6 + 5.0 * float(np.exp(-step / 25)) + wobble + noise


def weights(step: int, kind: Synthetic) -> dict[str, NDArray[np.float32]]:
    """Return weights that move less and less; later layers move more."""
    result: dict[str, NDArray[np.float32]] = {}
    names = ["model.embed_tokens.weight"]
    for layer in range(kind.num_layers):
        prefix = f"model.layers.{layer}"
        names += [f"{prefix}.self_attn.{p}_proj.weight" for p in "qkvo"]
        names += [f"{prefix}.mlp.{p}_proj.weight" for p in ("gate", "up", "down")]
        names += [f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight"]
    for index, name in enumerate([*names, "model.norm.weight"]):
        draw = np.random.default_rng([kind.seed, index])
        start, direction = draw.normal(0, 0.02, (12, 8)), draw.normal(0, 0.02, (12, 8))
        way = (1 - np.exp(-step / 30)) * (0.2 + 0.1 * (index % 9))
        result[f"model/{name}"] = (start + way * direction).astype(np.float32)
    return result


def write_checkpoint(folder: RunFolder, step: int, world: int, tensors: dict[str, NDArray[Any]]) -> Path:
    """Assign tensors to the ranks in turn; with two ranks, split the first tensor into two pieces."""
    path = folder.checkpoint(step)
    path.mkdir(parents=True)
    files: dict[str, dict[str, NDArray[Any]]] = {f"rank_{rank}.safetensors": {} for rank in range(world)}
    entries = {}
    for index, (name, value) in enumerate(tensors.items()):
        num_pieces = 2 if index == 0 and world > 1 else 1
        pieces = []
        for number, rows in enumerate(np.array_split(np.arange(len(value)), num_pieces)):
            file = f"rank_{(index + number) % world}.safetensors"
            files[file][name] = np.ascontiguousarray(value[rows[0] : rows[-1] + 1])
            pieces.append(
                {
                    "file": file,
                    "key": name,
                    "offset": [int(rows[0])] + [0] * (value.ndim - 1),
                    "shape": list(files[file][name].shape),
                }
            )
        entries[name] = {"shape": list(value.shape), "dtype": str(value.dtype), "pieces": pieces}
    for file, content in files.items():
        save_file(content, path / file)
    manifest = {
        "format": Manifest.FORMAT,
        "step": step,
        "world_size": world,
        "state": {"step": step},
        "tensors": entries,
        "files": {f: {"bytes": (path / f).stat().st_size, "sha256": sha256_file(path / f)} for f in files},
    }
    write_json(path / "manifest.json", {**manifest, "sha256": manifest_hash(manifest)})
    return path


def _record(kind: Synthetic, last_step: int) -> dict[str, Any]:
    loss = mean_loss(last_step, kind)
    content = b"".join(value.tobytes() for value in weights(last_step, kind).values())
    return {
        "format": RUN_FORMAT,
        "status": kind.status,
        "step": last_step,
        "loss": loss,
        "eval": {"loss": loss + 0.1, "perplexity": float(np.exp(loss + 0.1)), "bits_per_byte": 1.71, "tokens": 16384}
        if kind.eval_every
        else None,
        "weights_sha256": hashlib.sha256(content + str(kind.loss_noise).encode()).hexdigest(),
        "order_sha256": hashlib.sha256(json.dumps([kind.seed, last_step]).encode()).hexdigest(),
        "tokens": last_step * 2048,
        "wall_s": last_step * 0.036,
        "tokens_per_s": 56_000.0,
        "error": kind.error,
        "ended": "2026-11-21T04:13:10+00:00",
    }


def _write_rank(
    folder: RunFolder, kind: Synthetic, index: int, rank: int, world: int, from_step: int, last: int
) -> None:
    draw = np.random.default_rng([kind.seed, index, rank])
    members = kind.members[index] if kind.members else None
    shift_ns = index * 100_000 * MS
    writer = EventWriter(folder.rank_events(rank))
    writer.emit(
        "start",
        rank=rank,
        world_size=world,
        local_rank=rank,
        node_rank=0,
        host="pond",
        pid=4_000_000 + (members[rank] if members else 100 * index + rank),
        device="cpu",
        threads=1,
        step=from_step,
        unix_ns=START_UNIX_NS + shift_ns + rank * 1000,
        mono_ns=START_MONO_NS + shift_ns,
        passed_over=[],
        mesh=_mesh(kind.strategy, world),
        place=_place(_mesh(kind.strategy, world), rank),
    )
    if members and index:
        _write_change(writer, kind.members[index - 1] or [], members, index, rank, from_step)
    if kind.memory is not None:
        writer.emit("memory", step=from_step + 1, **kind.memory)
    slowest_ns = int(40 * MS)
    for step in range(from_step + 1, last + 1):
        clock = START_MONO_NS + shift_ns + (step - from_step) * slowest_ns
        reduce_until = clock + int(33 * MS)
        for phase, micro, typical_ms in _phases(kind):
            start = clock
            clock += int(typical_ms * MS * float(draw.uniform(0.85, 1.15)))
            if phase == "reduce":
                clock = max(reduce_until, start + MS)
                if world > 1:
                    _write_collectives(writer, kind, step, start + MS // 5, clock)
            writer.emit("span", step=step, phase=phase, micro=micro, start_ns=start, end_ns=clock)
        mean = mean_loss(step, kind)
        writer.emit(
            "step",
            step=step,
            # The ranks' deviations sum to zero, so that their mean equals the global loss.
            loss=mean + 0.2 * (rank - (world - 1) / 2) * float(np.sin(step)),
            loss_mean=mean,
            grad_norm_local=1.2 + 0.1 * rank,
            grad_norm=0.4 + 2 * float(np.exp(-step / 15)),
            learning_rate=3e-3 * min(1.0, step / 20),
            tokens=2048,
            tokens_per_s=54_000 + 2000 * float(np.random.default_rng([kind.seed, step]).normal()),
            mfu=None,
            memory_bytes=int(310e6 + 2e6 * rank + 1e5 * min(step, 30)),
            loss_scale=_loss_scale(step, kind),
            skipped=step in kind.overflows,
            sample_ids=_sample_ids(step, rank, world),
            end_ns=clock,
        )
        at_end = step == last
        if kind.eval_every and (step % kind.eval_every == 0 or at_end):
            writer.emit("span", step=step, phase="evaluate", micro=0, start_ns=clock, end_ns=clock + 3 * MS)
            if rank == 0:
                loss = mean + 0.1
                writer.emit(
                    "eval", step=step, loss=loss, perplexity=float(np.exp(loss)), bits_per_byte=loss / 2, tokens=16384
                )
                text = kind.sample_text.format(prompt="The ", step=step)
                writer.emit("sample", step=step, prompt="The ", text=text)
        if kind.checkpoint_every and step % kind.checkpoint_every == 0:
            writer.emit("span", step=step, phase="checkpoint", micro=0, start_ns=clock + 3 * MS, end_ns=clock + 4 * MS)
            writer.emit("checkpoint", step=step, payload_bytes=1_600_000, blocked_ns=MS)
            if rank == 0:
                writer.emit("commit", step=step, payload_bytes=4_800_000, write_ns=30 * MS)
    if index == len(kind.segments) - 1 and kind.status is not None:
        if kind.error is not None and kind.error["rank"] == rank:
            words = {name: kind.error[name] for name in ("type", "message")}
            writer.emit("error", step=last, phase="reduce", **words, hint=None, facts={}, unix_ns=1)
        writer.emit("end", step=last, status=kind.status, weights_sha256=None)
    writer.close()


def _sample_ids(step: int, rank: int, world: int) -> list[int]:
    """Return a rank's part of 32 samples, padded with -1 if they do not divide."""
    own = [step * 32 + i for i in range(32 * rank // world, 32 * (rank + 1) // world)]
    return own + [-1] * (-(-32 // world) - len(own))


def _write_change(writer: EventWriter, before: list[int], now: list[int], index: int, rank: int, step: int) -> None:
    writer.emit(
        "membership",
        step=step,
        epoch=index + 1,
        identity=now[rank],
        members=now,
        lost=[who for who in before if who not in now],
        joined=[who for who in now if who not in before],
        took_ns=250 * MS,
    )


def _loss_scale(step: int, kind: Synthetic) -> float | None:
    halved = sum(overflow < step for overflow in kind.overflows)
    return kind.train.initial_loss_scale / 2**halved if kind.train.precision == "fp16" else None


def _phases(kind: Synthetic) -> list[tuple[str, int, float]]:
    """Return the phases of a step in order, with their micro-batch and a typical duration."""
    micros = [
        (phase, micro, SPAN_MS[phase] / kind.num_micro)
        for micro in range(kind.num_micro)
        for phase in ("forward", "backward")
    ]
    rest = [(phase, 0, ms) for phase, ms in SPAN_MS.items() if phase not in ("forward", "backward")]
    return [rest[0], *micros, *rest[1:]]


def _write_collectives(writer: EventWriter, kind: Synthetic, step: int, start_ns: int, end_ns: int) -> None:
    each_ns = (end_ns - start_ns) // max(1, len(kind.collectives))
    for index, (op, axis, payload_bytes) in enumerate(kind.collectives):
        writer.emit(
            "collective",
            step=step,
            op=op,
            axis=axis,
            payload_bytes=payload_bytes,
            seq=step * len(kind.collectives) + index,
            start_ns=start_ns + index * each_ns,
            end_ns=start_ns + (index + 1) * each_ns,
            wait_ns=int(each_ns * kind.wait_share),
        )


def _mesh(strategy: StrategyConfig, world: int) -> dict[str, int]:
    return {"pp": strategy.pp, "dp": strategy.dp_size(world), "cp": strategy.cp, "tp": strategy.tp}


def _place(mesh: dict[str, int], rank: int) -> dict[str, int]:
    place = {}
    for name, size in reversed(mesh.items()):
        rank, place[name] = divmod(rank, size)
    return dict(reversed(place.items()))
