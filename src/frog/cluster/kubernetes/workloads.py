"""Workloads of a manifest: a Job, a JobSet (jobset.x-k8s.io), a TrainJob (trainer.kubeflow.org, Kubeflow Trainer 2).

A TrainJob becomes the JobSet that its controller makes of a runtime: `torch-distributed`, which Kubeflow installs, or
one that the file contains. A JobSet becomes Jobs that start, restart and end together; their pods have the labels and
host names that the controller of kubernetes-sigs/jobset gives them.
"""

from __future__ import annotations

import copy
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frog.cluster.kubernetes.manifest_text import Fields
from frog.cluster.kubernetes.objects import (
    Claim,
    FailureRule,
    JobSet,
    KubernetesJob,
    Manifest,
    ReplicatedJob,
    Rule,
    Service,
)
from frog.cluster.kubernetes.pod_template import Volume, read_template
from frog.core.units import parse_whole

# ---- a Job -----------------------------------------------------------------------------------------------------------

_RULE_ACTIONS = ("FailJob", "Ignore", "Count")
_MOST_PODS = 100_000
"""Kubernetes' limits for an indexed Job."""


def read_job(
    spec: Fields, name: str, namespace: str, notes: list[str], *, in_set: bool = False, volumes: tuple[Volume, ...] = ()
) -> KubernetesJob:
    """Return the Job that a `spec` describes.

    in_set: a JobSet's controller fills in what a Job alone must say. volumes: further volumes of its pods.
    """
    spec.text("completionMode", "Indexed" if in_set else "NonIndexed", choices=["Indexed"])
    one = 1 if in_set and not spec.has("parallelism") else None
    completions = spec.number("completions", one, least=1, most=_MOST_PODS)
    parallelism = spec.number("parallelism", 1, least=1, most=_MOST_PODS)
    backoff_limit = spec.number("backoffLimit", 6)
    deadline_s = spec.optional_number("activeDeadlineSeconds")
    spec.text("podReplacementPolicy", "Failed", choices=["Failed"])
    policy = spec.object("podFailurePolicy")
    template = read_template(spec.object("template"), notes, "OnFailure" if in_set else None, volumes)
    rules = tuple(_read_exit_rule(rule, template.container.name) for rule in policy.objects("rules"))
    policy.done()
    if rules and template.restart_policy != "Never":
        policy.problem(f"needs restartPolicy Never; the pods have {template.restart_policy}")
    spec.without_effect("ttlSecondsAfterFinished")
    spec.done()
    return KubernetesJob(name, namespace, completions, parallelism, backoff_limit, deadline_s, rules, template)


def _read_exit_rule(rule: Fields, container: str) -> Rule:
    action = rule.text("action", choices=_RULE_ACTIONS)
    for condition in rule.objects("onPodConditions"):
        condition.text("type")
        condition.text("status", "True")
        condition.done()
    if not rule.has("onExitCodes"):
        rule.done()
        return Rule(action, None)
    on = rule.object("onExitCodes")
    rule.done()
    if (name := on.optional_text("containerName")) not in (None, container):
        on.problem(f"{name!r}: the pods' container is {container!r}", "containerName")
    operator = on.text("operator", choices=["In", "NotIn"])
    codes = on.numbers("values")
    on.done()
    return Rule(action, tuple(codes), operator == "In")


# ---- a JobSet --------------------------------------------------------------------------------------------------------

PREFIX = "jobset.sigs.k8s.io"
RESTART_KEY = f"{PREFIX}/restart-attempt"
_ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob",
            "RestartJobAndIgnoreMaxRestarts")  # fmt: skip
_REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")
_MOST_REPLICAS = 1024


@dataclass(frozen=True)
class _Member:
    """A replicated Job as the file has it."""

    name: str
    group: str
    replicas: int
    after: tuple[tuple[str, str], ...]
    job: KubernetesJob


def read_job_set(spec: Fields, kind: str, name: str, namespace: str, manifest: Manifest) -> None:
    """Add the JobSet that a `spec` describes to the manifest, with its Service and its claims."""
    volumes = _read_claims(spec, name, manifest)
    members = [_read_member(fields, name, namespace, volumes, manifest) for fields in spec.objects("replicatedJobs")]
    if not members:
        spec.problem("missing", "replicatedJobs")
    subdomain = _read_network(spec.object("network"), name, manifest)
    coordinator = _read_coordinator(spec, name, subdomain, members)
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        spec.problem("two have the same name", "replicatedJobs")
    in_order = spec.object("startupPolicy")
    ordered = in_order.text("startupPolicyOrder", "AnyOrder", choices=["AnyOrder", "InOrder"]) == "InOrder"
    in_order.done()
    job_set = JobSet(kind, name, tuple(_expanded(name, members, subdomain, coordinator, ordered)))
    manifest.sets.append(_with_policies(job_set, spec, names))
    if spec.flag("suspend"):
        manifest.notes.append("suspend: ignored, because no queue could start the Jobs later")
    manifest.notes += [f"{key}: ignored" for key in spec.without_effect("managedBy")]
    spec.without_effect("ttlSecondsAfterFinished")
    spec.done()


def _read_member(
    fields: Fields, set_name: str, namespace: str, volumes: tuple[Volume, ...], manifest: Manifest
) -> _Member:
    name, group = fields.name("name"), fields.text("groupName", "default")
    replicas = min(fields.number("replicas", 1, most=_MOST_REPLICAS), _MOST_REPLICAS)
    after = tuple(_read_dependency(dependency) for dependency in fields.objects("dependsOn"))
    template = fields.object("template")
    fields.done()
    meta = template.object("metadata")
    meta.text_map("labels")
    meta.text_map("annotations")
    meta.done()
    job = read_job(
        template.object("spec"), f"{set_name}-{name}", namespace, manifest.notes, in_set=True, volumes=volumes
    )
    template.done()
    return _Member(name, group, replicas, after, job)


def _read_dependency(fields: Fields) -> tuple[str, str]:
    dependency = fields.text("name"), fields.text("status", choices=["Ready", "Complete"])
    fields.done()
    return dependency


def _read_network(fields: Fields, name: str, manifest: Manifest) -> str | None:
    """Add the set's headless Service; return its name, the pods' subdomain, or None without host names."""
    enabled = fields.flag("enableDNSHostnames", True)
    subdomain = fields.optional_text("subdomain") or name
    publish = fields.flag("publishNotReadyAddresses", True)
    fields.done()
    if not enabled:
        return None
    manifest.services.setdefault(subdomain, Service(subdomain, {f"{PREFIX}/jobset-name": name}, publish))
    return subdomain


def _read_coordinator(spec: Fields, name: str, subdomain: str | None, members: Sequence[_Member]) -> str | None:
    """Return the host name of the coordinator's pod, which labels all pods; None if the set names none."""
    if not spec.has("coordinator"):
        return None
    fields = spec.object("coordinator")
    member, job, pod = fields.text("replicatedJob"), fields.number("jobIndex", 0), fields.number("podIndex", 0)
    fields.done()
    if member not in [other.name for other in members]:
        fields.problem(f"{member!r}: no such Job in the set", "replicatedJob")
    return f"{name}-{member}-{job}-{pod}.{subdomain or name}"


def _read_claims(spec: Fields, name: str, manifest: Manifest) -> tuple[Volume, ...]:
    """Add the claims of volumeClaimPolicies; return the volumes that the set adds to pods that mount them."""
    volumes = []
    for policy in spec.objects("volumeClaimPolicies"):
        policy.without_effect("retentionPolicy")
        for template in policy.objects("templates"):
            meta = template.object("metadata")
            volume = meta.name("name")
            folder = meta.text_map("annotations").get("frog/local-folder", f"volumes/{volume}-{name}")
            meta.text_map("labels")
            meta.done()
            template.without_effect("spec")
            template.done()
            manifest.claims[f"{volume}-{name}"] = Claim(f"{volume}-{name}", folder)
            volumes.append(Volume(volume, claim=f"{volume}-{name}"))
        policy.done()
    return tuple(volumes)


def _expanded(
    name: str, members: Sequence[_Member], subdomain: str | None, coordinator: str | None, in_order: bool
) -> Iterator[ReplicatedJob]:
    """Yield the replicated Jobs with one Job per replica, named and labeled as in a cluster."""
    first, uid = 0, str(uuid.uuid4())
    before: tuple[tuple[str, str], ...] = ()
    for member in members:
        in_group = [other for other in members if other.group == member.group]
        group_first = sum(other.replicas for other in in_group[: in_group.index(member)])
        common = {
            "jobset-name": name,
            "jobset-uid": uid,
            "replicatedjob-name": member.name,
            "replicatedjob-replicas": str(member.replicas),
            "global-replicas": str(sum(other.replicas for other in members)),
            "group-name": member.group,
            "group-replicas": str(sum(other.replicas for other in in_group)),
            **({"coordinator": coordinator} if coordinator else {}),
        }
        jobs = []
        for index in range(member.replicas):
            places = {"job-index": index, "job-global-index": first + index, "job-group-index": group_first + index}
            jobs.append(_replica(member.job, index, subdomain, {**common, **{k: str(v) for k, v in places.items()}}))
        yield ReplicatedJob(member.name, tuple(jobs), (*member.after, *before))
        first += member.replicas
        before = ((member.name, "Ready"),) if in_order else ()


def _replica(job: KubernetesJob, index: int, subdomain: str | None, labels: Mapping[str, str]) -> KubernetesJob:
    """Return one Job of a replicated Job, whose pods have these labels, and the same annotations."""
    name = f"{job.name}-{index}"
    key = hashlib.sha1(f"{job.namespace}/{name}".encode(), usedforsecurity=False).hexdigest()
    added = {f"{PREFIX}/{label}": value for label, value in {**labels, "job-key": key}.items()}
    template = replace(
        job.template,
        labels={**job.template.labels, **added},
        annotations={**job.template.annotations, **added},
        subdomain=subdomain if subdomain is not None else job.template.subdomain,
    )
    return attempt(replace(job, name=name, template=template), 0)


def attempt(job: KubernetesJob, restarts: int) -> KubernetesJob:
    """Return a Job as the set creates it after so many restarts."""
    number = {RESTART_KEY: str(restarts)}
    template = replace(
        job.template, labels={**job.template.labels, **number}, annotations={**job.template.annotations, **number}
    )
    return replace(job, uid=str(uuid.uuid4()), template=template)


def _with_policies(job_set: JobSet, spec: Fields, names: Sequence[str]) -> JobSet:
    """Return the set with its success and failure policies."""
    for position, member in enumerate(job_set.members):
        for other, _ in member.after:
            if other not in names[:position]:
                spec.problem(f"{member.name} depends on {other!r}, which must come before it", "replicatedJobs")
    success, failure = spec.object("successPolicy"), spec.object("failurePolicy")
    any_succeeds = success.text("operator", "All", choices=["All", "Any"]) == "Any"
    succeeding = _targets(success, names)
    success.done()
    strategy = failure.text("restartStrategy", "Recreate", choices=["Recreate", "BlockingRecreate"])
    rules = tuple(_read_failure_rule(rule, names) for rule in failure.objects("rules"))
    max_restarts = failure.number("maxRestarts", 0)
    failure.done()
    return replace(
        job_set,
        max_restarts=max_restarts,
        rules=rules,
        wait_for_end=strategy == "BlockingRecreate",
        any_succeeds=any_succeeds,
        succeeding=succeeding,
    )


def _read_failure_rule(rule: Fields, names: Sequence[str]) -> FailureRule:
    rule.optional_text("name")
    action, reasons = rule.text("action", choices=_ACTIONS), rule.texts("onJobFailureReasons")
    for reason in reasons:
        if reason not in _REASONS:
            rule.problem(f"{reason!r}: must be one of {', '.join(_REASONS)}", "onJobFailureReasons")
    rule.refuse("onJobFailureMessagePatterns", "the messages of Jobs differ from those of a cluster")
    failure_rule = FailureRule(action, tuple(reasons), _targets(rule, names))
    rule.done()
    return failure_rule


def _targets(fields: Fields, names: Sequence[str]) -> tuple[str, ...]:
    targets = fields.texts("targetReplicatedJobs")
    for target in targets:
        if target not in names:
            fields.problem(f"{target!r}: no such Job in the set", "targetReplicatedJobs")
    return tuple(targets)


# ---- a TrainJob ------------------------------------------------------------------------------------------------------

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
    if text.endswith("m"):
        return -(-(parse_whole(text[:-1]) or 0) // 1000)
    return parse_whole(text) or 0


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
        return job, next((container for container in _listed(containers) if _name_of(container) == _NODE), None)
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
    merged = list(base)
    for change in changes:
        names = [_name_of(item) for item in merged]
        if (name := _name_of(change)) is not None and name in names:
            merged[names.index(name)] = _merged(merged[names.index(name)], change)
        else:
            merged.append(change)
    return merged


def _name_of(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
