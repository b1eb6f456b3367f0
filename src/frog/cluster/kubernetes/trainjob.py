"""A TrainJob (trainer.kubeflow.org, Kubeflow Trainer 2): becomes the JobSet that its controller makes of a runtime.

The runtime is `torch-distributed`, which Kubeflow installs, or one that the file contains.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frog.cluster.kubernetes.fields import Fields
from frog.cluster.kubernetes.jobset import read_job_set
from frog.cluster.kubernetes.objects import Manifest

STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
_PORT = 29500
_NODE = "node"
"""Name of the Job and of the container that a TrainJob's trainer describes."""

_RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_INDEX_PATH = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass(frozen=True)
class Runtime:
    """What a runtime prescribes: the JobSet to start from, its number of nodes, and whether torchrun's variables."""

    job_set: Mapping[str, Any]
    num_nodes: int
    torch: bool


TORCH_DISTRIBUTED = Runtime(
    {
        "replicatedJobs": [
            {
                "name": _NODE,
                "template": {
                    "metadata": {"labels": {STEP_LABEL: "trainer"}},
                    "spec": {
                        "template": {"spec": {"containers": [{"name": _NODE, "image": "pytorch/pytorch"}]}},
                    },
                },
            }
        ]
    },
    num_nodes=1,
    torch=True,
)
"""The runtime `torch-distributed`, as Kubeflow Trainer 2.3 installs it."""


def read_runtime(top: Fields) -> Runtime:
    """Return a TrainingRuntime or ClusterTrainingRuntime of the file. A TrainJob's JobSet checks its template."""
    spec = top.object("spec")
    policy, template = spec.object("mlPolicy"), spec.object("template")
    spec.without_effect("podGroupPolicy")
    spec.done()
    num_nodes, torch = policy.number("numNodes", 1, least=1), policy.has("torch")
    policy.object("torch").done()
    policy.done()
    meta = template.object("metadata")
    meta.text_map("labels")
    meta.text_map("annotations")
    meta.done()
    job_set = template.value("spec")
    template.done()
    return Runtime(job_set, num_nodes, torch)


def read_train_job(top: Fields, name: str, namespace: str, runtimes: Mapping[str, Runtime], manifest: Manifest) -> None:
    """Add the JobSet of a TrainJob to the manifest."""
    spec = top.object("spec")
    runtime = _read_reference(spec.object("runtimeRef"), runtimes)
    job_set = copy.deepcopy(dict(runtime.job_set))
    for patch in spec.objects("runtimePatches"):
        patch.without_effect("manager", "time")
        runtime_spec = patch.object("trainingRuntimeSpec")
        changes = runtime_spec.object("template")
        runtime_spec.done()
        changes.without_effect("metadata")
        job_set = _merged(job_set, changes.value("spec"))
        changes.done()
        patch.done()
    _apply_trainer(spec.object("trainer"), name, runtime, job_set)
    if spec.flag("suspend"):
        manifest.notes.append("suspend: ignored, because no queue could start the TrainJob later")
    manifest.notes += [f"{key}: ignored" for key in spec.without_effect("managedBy")]
    spec.done()
    read_job_set(Fields(job_set, f"JobSet of TrainJob {name}", top.problems), "TrainJob", name, namespace, manifest)


def _read_reference(fields: Fields, runtimes: Mapping[str, Runtime]) -> Runtime:
    fields.text("apiGroup", "trainer.kubeflow.org", choices=["trainer.kubeflow.org"])
    fields.text("kind", RUNTIME_KINDS[0], choices=RUNTIME_KINDS)
    name = fields.text("name")
    fields.done()
    known = {"torch-distributed": TORCH_DISTRIBUTED, **runtimes}
    if name and name not in known:
        fields.problem(f"{name!r}: not in this file; Frog knows torch-distributed. Add the runtime to the file", "name")
    return known.get(name, TORCH_DISTRIBUTED)


def _apply_trainer(trainer: Fields, name: str, runtime: Runtime, job_set: dict[str, Any]) -> None:
    """Write the trainer's fields into the runtime's trainer Job, as Kubeflow's controller does."""
    num_nodes = trainer.number("numNodes", runtime.num_nodes, least=1)
    num_ranks = trainer.optional_number("numProcPerNode")
    image = trainer.optional_text("image")
    command, args = trainer.texts("command"), trainer.texts("args")
    env, resources = trainer.value("env", []), trainer.value("resourcesPerNode", {})
    trainer.done()
    if taken := [variable["name"] for variable in env if _name_of(variable) in _RESERVED]:
        trainer.problem(f"{', '.join(taken)}: the runtime sets these", "env")
    job, container = _trainer_of(job_set)
    if job is None or container is None:
        trainer.problem(f"its runtime has no Job with the label {STEP_LABEL}: trainer and a container {_NODE}")
        return
    job["replicas"] = 1
    job["template"]["spec"].update(parallelism=num_nodes, completions=num_nodes)
    given = {"image": image, "command": command, "args": args, "resources": resources}
    container.update({key: value for key, value in given.items() if value})
    container["env"] = _by_name(_listed(container.get("env")), env)
    if runtime.torch:
        ranks = num_ranks if num_ranks is not None else _ranks_of(container.get("resources"))
        container["env"] = _by_name(container["env"], _torch_variables(name, num_nodes, ranks))


def _torch_variables(name: str, num_nodes: int, num_ranks: int) -> list[dict[str, Any]]:
    """Return the variables that torchrun reads instead of options."""
    host = f"{name}-{_NODE}-0-0.{name}"
    values = [str(num_nodes), str(num_ranks), None, host, str(_PORT)]
    source = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX_PATH}}}
    return [
        {"name": key, **(source if value is None else {"value": value})}
        for key, value in zip(_RESERVED, values, strict=True)
    ]


def _ranks_of(resources: Any) -> int:
    """Return a node's number of ranks if the TrainJob sets none: its GPUs, otherwise its requested CPUs, at least 1."""
    lists = [resources.get(key, {}) for key in ("limits", "requests")] if isinstance(resources, dict) else []
    amounts = [amount for amount in lists if isinstance(amount, dict)]
    gpus = [_whole(amount.get("nvidia.com/gpu")) for amount in amounts]
    cpus = [_whole(amount.get("cpu")) for amount in reversed(amounts)]
    return next((number for number in (*gpus, *cpus) if number > 0), 1)


def _whole(quantity: Any) -> int:
    """Return a quantity of CPUs or GPUs, rounded up as Kubernetes does; 0 if it is none."""
    text = str(quantity or "")
    if text.endswith("m") and text[:-1].isdecimal():
        return -(-int(text[:-1]) // 1000)
    return int(text) if text.isdecimal() else 0


def _trainer_of(job_set: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the runtime's trainer Job and its container, to change them."""
    for job in _listed(job_set.get("replicatedJobs")):
        try:
            template = job["template"]
            if template["metadata"]["labels"][STEP_LABEL] != "trainer":
                continue
            containers = template["spec"]["template"]["spec"]["containers"]
        except (KeyError, TypeError):
            continue
        return job, next((found for found in _listed(containers) if _name_of(found) == _NODE), None)
    return None, None


def _merged(base: Any, patch: Any) -> Any:
    """Merge a patch as Kubernetes does: objects by key, lists of named objects by name, other lists appended."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: _merged(base[key], patch[key]) if key in base else patch[key] for key in patch}}
    if isinstance(base, list) and isinstance(patch, list):
        return _by_name(base, patch)
    return patch


def _by_name(base: list[Any], changes: list[Any]) -> list[Any]:
    """Return a list in which a change replaces or amends the object of its name."""
    found = list(base)
    for change in changes:
        names = [_name_of(item) for item in found]
        if (name := _name_of(change)) is not None and name in names:
            found[names.index(name)] = _merged(found[names.index(name)], change)
        else:
            found.append(change)
    return found


def _name_of(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
