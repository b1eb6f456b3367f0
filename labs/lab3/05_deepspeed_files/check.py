"""Read both files as DeepSpeed does, and compare what they start with the job."""

import codecs
import json
import re
from typing import Any, NoReturn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

HOSTS = {"node1": 4, "node2": 4}
SAMPLES, FIT = 256, 8
BATCH, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def check(grade: Grade) -> None:
    """Check the processes first, then what each of them computes."""
    refuse_marks(grade)
    hosts = read_hosts(grade)
    config = read_config(grade)
    check_hosts(grade, hosts)
    micro, steps = check_batch(grade, config, sum(hosts.values()))
    check_rest(grade, config)
    grade.measured("processes", f"{sum(hosts.values())}, on {', '.join(hosts)}")
    grade.measured("samples in a step", f"{micro} x {steps} x {sum(hosts.values())} = {SAMPLES}")
    grade.predicted("accumulation", SAMPLES / FIT / sum(HOSTS.values()))


def refuse_marks(grade: Grade) -> None:
    """Reject a byte-order mark, which some editors write and `grade.text` leaves out: DeepSpeed reads it."""
    for name, id, does in (
        ("hostfile", "not-a-hostfile", "takes it as a part of the first machine's name"),
        ("ds_config.json", "not-json", "stops with an error of Python's JSON parser"),
    ):
        if (grade.folder / name).read_bytes().startswith(codecs.BOM_UTF8):
            text = f"{name} begins with a byte-order mark (EF BB BF), as some editors write it: DeepSpeed {does}."
            grade.reject(id, text)


def read_hosts(grade: Grade) -> dict[str, int]:
    """Return the slots of each machine."""
    found: dict[str, int] = {}
    for number, line in enumerate(grade.text("hostfile").splitlines(), start=1):
        if not (words := line.split("#")[0].strip()):
            continue
        match = re.fullmatch(r"(\S+)\s+slots=(\d{1,9})", words)
        if match is None:
            text = f"hostfile, line {number}: '{line:.60}' is not NAME slots=NUMBER: DeepSpeed stops with an error."
            grade.reject("not-a-hostfile", text)
        if match[1] in found:
            grade.reject(
                "unknown", f"hostfile, line {number}: {match[1]} occurs a second time: DeepSpeed stops with an error."
            )
        found[match[1]] = int(match[2])
    return found


def read_config(grade: Grade) -> dict[str, Any]:
    def twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                grade.reject("unknown", f"ds_config.json: {name} occurs twice: DeepSpeed stops with an error.")
        return dict(pairs)

    try:
        config = json.loads(grade.text("ds_config.json"), object_pairs_hook=twice)
    except json.JSONDecodeError as problem:
        grade.reject("not-json", f"ds_config.json, line {problem.lineno}, column {problem.colno}: {problem.msg}.")
    except (ValueError, RecursionError) as problem:  # a number with thousands of digits, lists nested too deeply
        grade.reject("not-json", f"ds_config.json cannot be read: {problem}.")
    if not isinstance(config, dict):
        grade.reject("unknown", "ds_config.json is valid JSON, but its outermost value is not an object {...}.")
    return config


def check_hosts(grade: Grade, hosts: dict[str, int]) -> None:
    """Check that the hostfile starts four processes on each of two machines."""
    if hosts == HOSTS:
        return
    shown = ", ".join(f"{slots} on {host}" for host, slots in hosts.items()) or "none"
    processes = count(sum(hosts.values()), "process", "processes")
    observed = f"The hostfile starts {shown}: {processes}. node1 and node2 have 4 GPUs each."
    if any(slots > HOSTS.get(host, slots) for host, slots in hosts.items()):
        grade.reject("slots-are-all-gpus", observed)
    if set(hosts) == set(HOSTS):
        grade.reject("gpus-left-idle", observed)
    grade.reject("one-machine" if set(hosts) < set(HOSTS) else "unknown", observed)


def check_batch(grade: Grade, config: dict[str, Any], world: int) -> tuple[int, int]:
    """Return the micro-batch and the accumulation; a missing number follows from the other two."""
    for name in (BATCH, MICRO, STEPS):
        value = config.get(name)
        if value == "auto":
            grade.reject("auto-is-understood", f'ds_config.json: {name} is "auto", but DeepSpeed needs a number.')
        if value is not None and (type(value) is not int or value < 1):
            grade.reject("unknown", f"ds_config.json: {name} is {value!r:.40}; it must be an integer of at least 1.")
    batch, micro, steps = (config.get(name) for name in (BATCH, MICRO, STEPS))
    micro, steps, batch = fill(grade, batch, micro, steps, world)
    product = [count(micro, "sample"), count(steps, "micro-batch", "micro-batches"), f"{world} processes"]
    observed = f"{' x '.join(product)} = {micro * steps * world}"
    of_one = micro * steps * max(HOSTS.values())
    if micro * steps * world != batch and of_one == batch:
        text = f"{observed}, but train_batch_size is {batch}, as on one machine: DeepSpeed stops with an error."
        grade.reject("one-machine-counts", text)
    if micro * steps * world != SAMPLES and of_one == SAMPLES:
        grade.reject("one-machine-counts", f"{observed}; on only one machine it would be {of_one}.")
    if micro * steps * world != batch:
        id = "world-left-out" if micro * steps == batch else "unknown"
        grade.reject(id, f"{observed}, but train_batch_size is {batch!s:.40}: DeepSpeed stops with an error.")
    if micro > FIT:
        grade.reject("micro-batch-too-large", f"{observed}. That is {micro} samples on a GPU at a time; {FIT} fit.")
    if batch != SAMPLES:
        grade.reject("another-batch", f"{observed}. A step should take {SAMPLES} samples.")
    return micro, steps


def fill(grade: Grade, batch: Any, micro: Any, steps: Any, world: int) -> tuple[int, int, int]:
    """Return all three numbers, as DeepSpeed derives them."""
    if micro is None and batch is None:
        refuse(grade)
    if batch is None:
        steps = steps or 1
        return micro, steps, micro * steps * world
    if micro is None:
        steps = steps or 1
        return batch // steps // world, steps, batch
    return micro, steps or batch // micro // world, batch


def refuse(grade: Grade) -> NoReturn:
    grade.reject("unknown", f"ds_config.json: it sets neither {BATCH} nor {MICRO}: DeepSpeed stops with an error.")


def check_rest(grade: Grade, config: dict[str, Any]) -> None:
    """Check the ZeRO stage, the data type and the limit of the gradients' norm."""
    zero = config.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else None
    split = {0: "nothing", 1: "the optimizer state", 2: "it and the gradients", 3: "it, the gradients and the weights"}
    if not isinstance(zero, dict):
        grade.reject("unknown", f"zero_optimization is {zero!r:.40}; it must be an object with a stage.")
    if type(stage) is not int or stage not in split:
        grade.reject("unknown", f"zero_optimization.stage is {stage!r:.40}; it must be a number from 0 to 3.")
    if stage != 2:
        grade.reject("another-stage", f"zero_optimization.stage is {stage}, which splits {split[stage]}.")
    types = {"fp16": config.get("fp16"), "bf16": config.get("bf16", config.get("bfloat16"))}  # an old name for bf16
    for name, about in types.items():
        if about is not None and not (isinstance(about, dict) and type(about.get("enabled", False)) is bool):
            grade.reject("unknown", f'ds_config.json: {name} is {about!r:.60}; it must look like {{"enabled": true}}.')
    on = [name for name, about in types.items() if about and about.get("enabled")]
    if on != ["bf16"]:
        id = "two-precisions" if len(on) == 2 else "fp16-is-bf16" if on else "type-by-itself"
        enabled = {0: "Neither fp16 nor bf16 is enabled", 1: "fp16 is enabled", 2: "fp16 and bf16 are enabled"}[len(on)]
        grade.reject(id, f"{enabled}; the job's data type is bf16.")
    if config.get("gradient_clipping") != 1.0:
        found = f"is {config['gradient_clipping']!r:.40}" if "gradient_clipping" in config else "is missing"
        text = f"ds_config.json: gradient_clipping {found}; the job clips gradients at norm 1.0."
        grade.reject("clipping-left-out", text)
