"""A JobSet (jobset.x-k8s.io): replicated Jobs that start, restart and end together.

The labels and host names are those that the controller of kubernetes-sigs/jobset gives to the pods.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frog.cluster.kubernetes.fields import Fields
from frog.cluster.kubernetes.jobspec import read_job
from frog.cluster.kubernetes.objects import Claim, FailureRule, JobSet, KubernetesJob, Manifest, ReplicatedJob, Service
from frog.cluster.kubernetes.pod_template import Volume

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
    found = JobSet(kind, name, tuple(_expanded(name, members, subdomain, coordinator, ordered)))
    manifest.sets.append(_with_policies(found, spec, names))
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
    found = fields.text("name"), fields.text("status", choices=["Ready", "Complete"])
    fields.done()
    return found


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


def _with_policies(found: JobSet, spec: Fields, names: Sequence[str]) -> JobSet:
    """Return the set with its success and failure policies."""
    for position, member in enumerate(found.members):
        for other, _ in member.after:
            if other not in names[:position]:
                spec.problem(f"{member.name} depends on {other!r}, which must come before it", "replicatedJobs")
    success, failure = spec.object("successPolicy"), spec.object("failurePolicy")
    any_succeeds = success.text("operator", "All", choices=["All", "Any"]) == "Any"
    succeeding = _targets(success, names)
    success.done()
    strategy = failure.text("restartStrategy", "Recreate", choices=["Recreate", "BlockingRecreate"])
    rules = tuple(_read_rule(rule, names) for rule in failure.objects("rules"))
    max_restarts = failure.number("maxRestarts", 0)
    failure.done()
    return replace(
        found,
        max_restarts=max_restarts,
        rules=rules,
        wait_for_end=strategy == "BlockingRecreate",
        any_succeeds=any_succeeds,
        succeeding=succeeding,
    )


def _read_rule(rule: Fields, names: Sequence[str]) -> FailureRule:
    rule.optional_text("name")
    action, reasons = rule.text("action", choices=_ACTIONS), rule.texts("onJobFailureReasons")
    for reason in reasons:
        if reason not in _REASONS:
            rule.problem(f"{reason!r}: must be one of {', '.join(_REASONS)}", "onJobFailureReasons")
    rule.refuse("onJobFailureMessagePatterns", "the messages of Jobs differ from those of a cluster")
    found = FailureRule(action, tuple(reasons), _targets(rule, names))
    rule.done()
    return found


def _targets(fields: Fields, names: Sequence[str]) -> tuple[str, ...]:
    targets = fields.texts("targetReplicatedJobs")
    for target in targets:
        if target not in names:
            fields.problem(f"{target!r}: no such Job in the set", "targetReplicatedJobs")
    return tuple(targets)
