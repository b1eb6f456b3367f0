"""DeepSpeed's JSON and accelerate's YAML: what contradicts in a file, and between it and the job that uses it.

A job file names them with `--deepspeed`, `--deepspeed_config` or `--config_file`, and `frog slurm explain ds.json`
reads one alone. A rule reports only what the libraries themselves refuse (DeepSpeed 0.19, accelerate 1.10), or what
cannot fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.cluster.jobfile.findings import ADVICE, FAILS, WASTES, Finding, Kind
from frog.cluster.jobfile.job_file import JobFile
from frog.cluster.kubernetes.manifest_text import load_documents
from frog.core.errors import UsageError
from frog.core.schema import check_depth, leaves, read_bounded, shortened
from frog.core.user_input import nearest

SUFFIXES = (".json", ".yaml", ".yml")
_MOST_BYTES = 1 << 20
_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_OF_DEEPSPEED = {_BATCH, _MICRO, _STEPS, "zero_optimization", "fp16", "bf16"}
_OF_ACCELERATE = {"distributed_type", "num_processes", "num_machines", "compute_environment", "deepspeed_config",
                  "fsdp_config"}  # fmt: skip


@dataclass(frozen=True)
class LauncherFile:
    """A configuration file of DeepSpeed or accelerate."""

    path: Path
    kind: str
    """DeepSpeed or accelerate."""
    table: Mapping[str, Any]
    text: str

    def line(self, key: str) -> int:
        """Return the line of a key, by its last part; 1 if it is not found."""
        name = re.escape(key.rpartition(".")[2])
        match = re.search(rf"(?m)^.*?(?<![\w-])[\"']?{name}[\"']?\s*:", self.text)
        return self.text.count("\n", 0, match.end()) + 1 if match else 1


@dataclass(frozen=True)
class JobOfFile:
    """What is known of the job that uses a file; None: unknown."""

    world: int | None = None
    machines: int | None = None
    per_machine: int | None = None
    in_command: frozenset[str] = frozenset()
    """Options on the launcher's command line, which replace the file's."""
    starts_everywhere: bool = False
    """True if the same command runs on each of several machines."""


def read_launcher_file(path: Path) -> LauncherFile:
    """Read a file. Raises UsageError if it is not a configuration of DeepSpeed or accelerate."""
    try:
        text = read_bounded(path, UsageError, "name a configuration file", _MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", "for example, config/deepspeed_zero2.json") from None
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path}: not UTF-8: byte {problem.start}", "save it as UTF-8") from None
    try:
        table = json.loads(text) if path.suffix == ".json" else next(iter(load_documents(text)), {})
        check_depth(table)
    except json.JSONDecodeError as problem:
        raise UsageError(f"{path}:{problem.lineno}: not valid JSON: {problem.msg}", "correct that line") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply", "name a configuration file") from None
    except ValueError as problem:
        raise UsageError(f"{path}: cannot be read: {shortened(str(problem), 500)}", "correct that line") from None
    keys = set(map(str, table)) if isinstance(table, dict) else set()
    if {"apiVersion", "kind"} <= keys:
        raise UsageError(f"{path}: a Kubernetes manifest, not a job file", f"frog run --from {path} --dry-run")
    for kind, known in (("accelerate", _OF_ACCELERATE), ("DeepSpeed", _OF_DEEPSPEED)):
        if keys & known:
            return LauncherFile(path, kind, table, text)
    raise UsageError(f"{path}: neither DeepSpeed's JSON nor accelerate's YAML", "name one of these, or a job file")


def file_findings(file: LauncherFile, job: JobOfFile) -> list[Finding]:
    """Return what contradicts, by line."""
    find = _accelerate if file.kind == "accelerate" else _deepspeed
    return sorted(find(file, job), key=lambda finding: (finding.line, finding.code))


def summary(file: LauncherFile, job: JobOfFile) -> list[str]:
    """Describe the file in a few lines."""
    table = file.table
    if file.kind == "accelerate":
        names = ("distributed_type", "num_machines", "num_processes", "mixed_precision")
        return [f"accelerate: {', '.join(f'{name} {table[name]}' for name in names if name in table)}"]
    zero = _section(table, "zero_optimization")
    types = [name for name in ("fp16", "bf16") if _section(table, name).get("enabled") not in (None, False)]
    numbers = ", ".join(f"{name} {table[name]}" for name in (_BATCH, _MICRO, _STEPS) if name in table)
    world = f"; {job.world} processes" if job.world else ""
    return [f"DeepSpeed: ZeRO stage {zero.get('stage', 0)}, {' and '.join(types) or 'fp32'}; {numbers}{world}"]


def _at(
    file: LauncherFile, kind: Kind, code: str, key: str, what: str, why: str, instead: str | None = None
) -> Finding:
    return Finding(kind, code, file.line(key), shortened(what, 300), why, instead)


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


# ---- DeepSpeed -------------------------------------------------------------------------------------------------------


def _deepspeed(file: LauncherFile, job: JobOfFile) -> Iterator[Finding]:
    table = file.table
    yield from _batch_sizes(file, job)
    on = [name for name in ("fp16", "bf16") if _section(table, name).get("enabled") is True]
    if len(on) == 2:
        yield _at(file, FAILS, "two-precisions", "bf16", "fp16 and bf16 are both enabled", "DeepSpeed refuses it")
    yield from _zero(file, _section(table, "zero_optimization"))
    autos = [key for key, value in leaves(table) if value == "auto"]
    if autos:
        what = f'{", ".join(autos[:4])}{" and more" if len(autos) > 4 else ""}: "auto"'
        why = "transformers' Trainer and accelerate fill these in; DeepSpeed by itself stops with an error"
        yield _at(file, ADVICE, "auto-values", autos[0], what, why)


def _batch_sizes(file: LauncherFile, job: JobOfFile) -> Iterator[Finding]:
    table = file.table
    for name in (_BATCH, _MICRO, _STEPS):
        if name in table and table[name] != "auto" and _whole(table[name]) is None:
            why = "DeepSpeed needs a whole number of at least 1"
            yield _at(file, FAILS, "batch-size", name, f"{name} is {table[name]!r}", why)
    batch, micro, steps = (_whole(table.get(name)) for name in (_BATCH, _MICRO, _STEPS))
    if batch is None or (micro is None and steps is None):
        return
    known = (micro or 1) * (steps or 1)
    factors = " x ".join(str(number) for number in (micro, steps) if number)
    why = f"{_BATCH} must be {_MICRO} x {_STEPS} x the number of data-parallel processes"
    if batch % known:
        yield _at(file, FAILS, "batch-size", _BATCH, f"{_BATCH} {batch} is not a multiple of {factors}", why)
    elif job.world and micro and steps and batch // known != job.world:
        what = f"{_BATCH} {batch}, but {factors} x {job.world} processes = {known * job.world}"
        parallel = job.world % (batch // known) == 0
        more = "; right only if the model is split over the other processes" if parallel else ""
        yield _at(
            file, WASTES if parallel else FAILS, "batch-size", _BATCH, what, f"{why}{more}",
            f'"{_BATCH}": {known * job.world}',
        )  # fmt: skip
    elif job.world and not (micro and steps) and batch % (known * job.world):
        what = f"{_BATCH} {batch} is not a multiple of {factors} x {job.world} processes"
        yield _at(file, WASTES, "batch-size", _BATCH, what, why)


def _zero(file: LauncherFile, zero: Mapping[str, Any]) -> Iterator[Finding]:
    stage = zero.get("stage", 0)
    if stage != "auto" and (type(stage) is not int or not 0 <= stage <= 3):
        yield _at(file, FAILS, "zero-stage", "stage", f"stage {stage!r}", "ZeRO has the stages 0, 1, 2 and 3")
        return
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        part = _section(zero, name)
        device = part.get("device", "cpu" if part else "none")
        if device in ("none", None, "auto"):
            continue
        if type(stage) is int and stage < least:
            needs = "ZeRO stage 3" if least == 3 else "a ZeRO stage of at least 1"
            what = f"{name} to {device} with ZeRO stage {stage}"
            yield _at(file, WASTES, "offload-without-zero", name, what, f"{name} needs {needs}: nothing moves there")
        if device == "nvme" and not part.get("nvme_path"):
            what = f"{name} to nvme without nvme_path"
            yield _at(file, FAILS, "no-nvme-path", name, what, "DeepSpeed does not know the folder")


# ---- accelerate ------------------------------------------------------------------------------------------------------

_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_FSDP_VALUES = {
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
}
_IN_DEEPSPEEDS_FILE = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
"""Keys of `deepspeed_config` that accelerate refuses together with a file of DeepSpeed's."""


def _accelerate(file: LauncherFile, job: JobOfFile) -> Iterator[Finding]:
    table = file.table
    yield from _machines(file, job)
    precision = table.get("mixed_precision", "no")
    precision = "no" if precision in (False, None) else str(precision)
    if precision not in _PRECISIONS:
        near = nearest(precision, _PRECISIONS)
        why = f"accelerate knows {', '.join(_PRECISIONS)}" + (f"; did you mean {near}?" if near else "")
        yield _at(file, FAILS, "mixed-precision", "mixed_precision", f"mixed_precision {precision}", why)
    deepspeed = _section(table, "deepspeed_config")
    named = deepspeed.get("deepspeed_config_file")
    both = [key for key in _IN_DEEPSPEEDS_FILE if key in deepspeed] if named else []
    if both:
        what = f"deepspeed_config_file together with {', '.join(both)}"
        why = "accelerate refuses it: with DeepSpeed's own file, these must be in that file"
        yield _at(file, FAILS, "deepspeed-twice", both[0], what, why)
    kind = str(table.get("distributed_type", "NO"))
    for section, needed in (("deepspeed_config", "DEEPSPEED"), ("fsdp_config", "FSDP")):
        if _section(table, section) and kind not in (needed, "MEGATRON_LM"):
            what = f"{section}, but distributed_type {kind}"
            yield _at(file, WASTES, "section-without-effect", section, what, f"only distributed_type {needed} reads it")
    if kind == "FSDP":
        yield from _fsdp(file, _section(table, "fsdp_config"))


def _machines(file: LauncherFile, job: JobOfFile) -> Iterator[Finding]:
    table = file.table
    machines, processes = _whole(table.get("num_machines", 1)), _whole(table.get("num_processes"))
    machines = None if "num-machines" in job.in_command or "nnodes" in job.in_command else machines
    processes = None if "num-processes" in job.in_command else processes
    if machines and job.machines and machines != job.machines and (machines > 1 or job.starts_everywhere):
        what = f"num_machines {machines}, but the job has {job.machines} nodes"
        why = "accelerate waits for as many machines as the file says"
        if machines < job.machines:
            why = "only so many nodes train together"
        yield _at(file, WASTES, "machines-differ", "num_machines", what, why, f"num_machines: {job.machines}")
        return
    if machines and processes and processes % machines:
        what = f"num_processes {processes} on {machines} machines"
        why = f"num_processes counts all machines: each starts {processes // machines}"
        yield _at(file, WASTES, "processes-uneven", "num_processes", what, why)
    elif machines and processes and job.per_machine and processes == job.per_machine and machines > 1:
        what = f"num_processes {processes}, and each of {machines} nodes has {job.per_machine} GPUs"
        why = f"num_processes counts all machines: each starts {processes // machines}, and GPUs stay idle"
        yield _at(
            file, WASTES, "processes-per-node", "num_processes", what, why, f"num_processes: {processes * machines}"
        )
    numbered = bool({"node-rank", "machine-rank"} & job.in_command) or table.get("rdzv_backend", "static") != "static"
    if machines and machines > 1 and job.starts_everywhere and "machine_rank" in table and not numbered:
        what = f"machine_rank {table['machine_rank']} for each of {machines} machines"
        why = "every machine says that it is this one; the command must give --machine_rank"
        yield _at(file, WASTES, "one-machine-rank", "machine_rank", what, why, '--machine_rank "$SLURM_NODEID"')


def _fsdp(file: LauncherFile, fsdp: Mapping[str, Any]) -> Iterator[Finding]:
    version = str(fsdp.get("fsdp_version", 1))
    for key, known in _FSDP_VALUES.items():
        value = str(fsdp.get(key, known[0]))
        if value.upper() not in known and not value.isdecimal():
            near = nearest(value.upper(), known)
            why = f"accelerate knows {', '.join(known)}" + (f"; did you mean {near}?" if near else "")
            yield _at(file, FAILS, "fsdp-value", key, f"{key} {value}", why)
    loads = str(fsdp.get("fsdp_cpu_ram_efficient_loading", False)).lower()
    syncs = str(fsdp.get("fsdp_sync_module_states", True)).lower()
    if version == "1" and loads == "true" and syncs == "false":
        what = "fsdp_cpu_ram_efficient_loading without fsdp_sync_module_states"
        why = "only rank 0 loads the weights, and no other rank gets them: accelerate refuses it"
        yield _at(file, FAILS, "fsdp-loading", "fsdp_sync_module_states", what, why, "fsdp_sync_module_states: true")


# ---- files that a job file names -------------------------------------------------------------------------------------

_OPTIONS = re.compile(r"--(deepspeed(?:[-_]config(?:[-_]file)?)?|ds[-_]config|config[-_]file)(?:=(.+))?")


def named_findings(job: JobFile, places: Sequence[Path]) -> Iterator[Finding]:
    """Yield what contradicts in the files that a job's commands name, at the line of the command."""
    seen: set[tuple[int, Path]] = set()
    for words, line, of_job in _commands(job):
        for name in _named(words):
            path = next((place / name for place in places if (place / name).is_file()), None)
            if path is None or (line, path) in seen:
                continue
            seen.add((line, path))
            try:
                file = read_launcher_file(path)
            except UsageError as problem:
                yield Finding(
                    FAILS, "unreadable-configuration", line, shortened(problem.what, 300), "no rank starts", None
                )
                continue
            for finding in file_findings(file, of_job):
                what = f"{name}:{finding.line}: {finding.what}"
                yield Finding(finding.kind, finding.code, line, what, finding.why, finding.instead)


def _commands(job: JobFile) -> Iterator[tuple[list[str], int, JobOfFile]]:
    """Yield the words of each command that may name a file, its line, and what is known of its processes."""
    for run in job.launches:
        words = [job.resolve(word.raw) or "" for word in run.command.words]
        per_node = run.option("nproc-per-node")
        ranks = job.resolve_int(per_node.raw) if per_node is not None else job.gpus_per_node or None
        everywhere = run.step is not None
        machines = job.nodes if everywhere else None
        world = ranks * job.nodes if ranks and job.nodes and (everywhere or job.nodes == 1) else None
        if run.kind == "accelerate" and (total := run.option("num-processes")) is not None:
            world = job.resolve_int(total.raw)
        yield (
            words,
            run.line,
            JobOfFile(
                world, machines, job.gpus_per_node or None, frozenset(run.options), everywhere and job.several_nodes
            ),
        )
    launched = {run.line for run in job.launches}
    for command in job.shell.all_commands:
        if command.line not in launched and any("deepspeed" in word.text for word in command.words):
            yield [job.resolve(word.raw) or "" for word in command.words], command.line, JobOfFile()


def _named(words: Sequence[str]) -> Iterator[str]:
    """Yield the files that options of a command name."""
    for place, word in enumerate(words):
        match = _OPTIONS.fullmatch(word)
        if match is None:
            continue
        value = match[2] or (words[place + 1] if place + 1 < len(words) else "")
        is_accelerates = match[1].startswith("config")
        if value.endswith(SUFFIXES) and (not is_accelerates or "accelerate" in " ".join(words[:place])):
            yield value
