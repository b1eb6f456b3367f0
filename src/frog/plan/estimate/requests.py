"""A model and the options of `frog plan MODEL` as a run: what they leave open is chosen here, and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frog.core.errors import ConfigError, UsageError
from frog.plan.estimate.adapters import Adapters
from frog.plan.estimate.hardware import Cluster, clusters
from frog.plan.estimate.programs import traits_of
from frog.plan.estimate.rows import PlannedRun, no_overlap, planned_run, precision_problem
from frog.plan.estimate.sources import NamedModel
from frog.plan.layout import Layout
from frog.plan.memory import USABLE
from frog.plan.model import PlannedModel

_BATCH_TOKENS = 4 * 2**20
"""Tokens of a step if nothing states them: the batch of Llama 3 and of other models of that size."""
_ADAPTER_SEQUENCES = 32
"""Sequences of a step that trains adapters: NVIDIA's LoRA recipes; Dettmers et al. 2023 have 16 to 64."""
_USUAL_SEQUENCE = 8192
SOFTWARE = {
    "megatron": "Megatron-Core",
    "megatron-bridge": "Megatron-Bridge",
    "fsdp": "torchtitan (FSDP2)",
    "torchtitan": "torchtitan (FSDP2)",
    "trainer": "Transformers Trainer (FSDP2)",
    "accelerate": "accelerate (FSDP2)",
    "deepspeed": "DeepSpeed",
    "frog": "Frog",
    "hai-llm": "HAI-LLM",
}
"""Short names of programs, as tables of runs call them."""
_MOST_GPUS = 10**7


def request_run(
    named: NamedModel,
    options: Mapping[str, str],
    cluster: Cluster,
    num_gpus: int,
    adapters: Adapters | None = None,
) -> PlannedRun:
    """Return the run of a model on a cluster. Options, by the names of a table's columns, win over a run file.

    With `adapters` only these are trained. `assumed` of the result names what was chosen. A choice is the plan's to
    make, so it widens no range.

    Raises:  ConfigError with the reason if the layout is impossible.
    """
    if not 1 <= num_gpus <= _MOST_GPUS:
        raise UsageError(f"{num_gpus} GPUs: must be at least 1 and at most {_MOST_GPUS}")
    stated = _stated(named, options)
    cells = {**stated, "n_gpus": str(num_gpus)}
    splits = any(cells.get(name, "1") != "1" for name in ("tp", "pp", "cp", "ep"))
    usual = "fsdp" if adapters is None else "trainer"
    if splits:
        usual = "megatron"
    _choose_program_and_sequence(cells, named, usual)
    dp = _data_ranks(cells, num_gpus)
    _choose_batch(cells, dp, _usual_tokens(cells, adapters))
    if "zero" not in cells:
        cells["zero"] = "3" if "FSDP" in cells["software"] else "1"
    cells.setdefault("seq_parallel", "yes" if _whole(cells, "tp") > 1 else "no")
    run = planned_run(named.model, cells, cluster)
    if adapters is not None:
        if problems := adapters.problems(named.model, run.layout):
            raise ConfigError("\n".join(problems))
        run = replace(run, adapters=adapters.of_program(cells["software"]))
    if problem := precision_problem(run.layout, cluster):
        raise ConfigError(problem, "--precision bf16")
    if "micro_batch" not in cells and run.layout.pp == 1:
        run = _fitting(named.model, cells, run)
    chosen = [f"{name}={cells[name]}" for name in _CHOSEN if name in cells and name not in stated]
    return replace(run, assumed=(*chosen, *run.assumed))


def zeros_of(software: str, adapters: Adapters | None = None) -> tuple[int, ...]:
    """Return the kinds of sharding (ZeRO 0 to 3) that a program has; adapters are also trained with DDP."""
    name = software.lower()
    if "fsdp" in name:
        return (3,) if adapters is None else (0, 3)
    return (0, 1) if "megatron" in name and "deepspeed" not in name else (0, 1, 2, 3)


def base_layout(named: NamedModel, options: Mapping[str, str], adapters: Adapters | None = None) -> tuple[Layout, str]:
    """Return the batch, sequence, precision and program of a search, on one GPU, and the program's name."""
    cells = _stated(named, options)
    _choose_program_and_sequence(cells, named, "megatron" if adapters is None else "trainer")
    _choose_batch(cells, 1, _usual_tokens(cells, adapters))
    stated: dict[str, str] = {name: cells[name] for name in _OF_ALL_LAYOUTS if name in cells}
    run = planned_run(named.model, {**stated, "n_gpus": "1", "micro_batch": "1"}, next(iter(clusters().values())))
    overlap = cells.get("overlap_moe", "")
    traits = traits_of({**stated, "overlap_moe": overlap})
    if overlap == "yes":
        why = no_overlap(traits) if named.model.experts else "the model has no experts"
        if why:
            raise ConfigError(f"overlap_moe=yes: {why}")
    return replace(run.layout, traits=traits), cells["software"]


_OF_ALL_LAYOUTS = ("software", "year", "precision", "seq_len", "global_batch", "capacity_factor", "imbalance")
_CHOSEN = ("software", "seq_len", "global_batch", "zero", "seq_parallel")


def _fitting(model: PlannedModel, cells: dict[str, str], run: PlannedRun) -> PlannedRun:
    """Return the run with its micro-batch or, if that does not fit in memory, the largest smaller one that does."""
    most = run.layout.micro_batch
    for size in (count for count in (4, 2, 1) if count <= most):
        planned = planned_run(model, {**cells, "micro_batch": str(size)}, run.cluster)
        smaller = replace(run, layout=planned.layout, assumed=planned.assumed)
        if smaller.step.memory.total <= USABLE * run.cluster.gpu.memory:
            break
    return replace(smaller, assumed=(f"micro_batch={size}", *smaller.assumed))


def _stated(named: NamedModel, options: Mapping[str, str]) -> dict[str, str]:
    return {**named.cells, **{name: value for name, value in options.items() if value}}


def _choose_program_and_sequence(cells: dict[str, str], named: NamedModel, usual: str) -> None:
    name = cells.get("software") or usual
    cells["software"] = SOFTWARE.get(name.lower(), name)
    cells.setdefault("seq_len", str(usual_sequence(named)))


def usual_sequence(named: NamedModel) -> int:
    """Return the length of a sequence if nothing states it."""
    stated = named.cells.get("seq_len", "")
    return int(stated) if stated.isdecimal() else min(named.most_positions or _USUAL_SEQUENCE, _USUAL_SEQUENCE)


def _data_ranks(cells: Mapping[str, str], num_gpus: int) -> int:
    """Return the number of data-parallel ranks that the other degrees leave.

    Raises:  ConfigError if they do not divide the GPUs.
    """
    others = 1
    for name in ("tp", "pp", "cp"):
        others *= max(1, _whole(cells, name))
    if num_gpus % others:
        raise ConfigError(f"tp x pp x cp = {others} does not divide {num_gpus} GPUs", "change a degree, or --nodes")
    return num_gpus // others


def _usual_tokens(cells: Mapping[str, str], adapters: Adapters | None) -> int:
    return _BATCH_TOKENS if adapters is None else _ADAPTER_SEQUENCES * _whole(cells, "seq_len")


def _choose_batch(cells: dict[str, str], dp: int, tokens: int) -> None:
    """Choose the global batch, about `tokens`, and the micro-batch of a run file, which states how many there are."""
    micro = _whole(cells, "micro_batch")
    if "global_batch" not in cells:
        least = dp * max(1, micro) * _whole(cells, "pp")
        sequences = tokens // max(1, _whole(cells, "seq_len"))
        cells["global_batch"] = str(max(1, round(sequences / least)) * least)
    accumulated = _whole(cells, "grad_accum")
    if accumulated and "micro_batch" not in cells:
        parts, batch = dp * accumulated, _whole(cells, "global_batch")
        if batch % parts:
            raise ConfigError(f"train.global_batch_size={batch} does not divide by dp={dp} x grad_accum={accumulated}")
        cells["micro_batch"] = str(batch // parts)


def _whole(cells: Mapping[str, str], name: str) -> int:
    text = cells.get(name) or ("0" if name in ("micro_batch", "grad_accum") else "1")
    if not (text.isascii() and text.isdecimal() and len(text) < 13):
        raise ConfigError(f"{name}={text!r}: must be a whole number")
    return int(text)
