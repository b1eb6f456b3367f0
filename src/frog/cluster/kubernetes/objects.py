"""The objects of a manifest: Jobs and sets of Jobs, Services, ConfigMaps, claims."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frog.cluster.kubernetes.pod_template import PodTemplate


@dataclass(frozen=True)
class Rule:
    """One rule of a podFailurePolicy. Without exit codes it applies to disruptions, which do not occur here."""

    action: str
    codes: tuple[int, ...] | None
    inside: bool = True
    """True if the exit code must be one of `codes`, False if it must not."""

    def matches(self, exit_code: int) -> bool:
        return self.codes is not None and (exit_code in self.codes) == self.inside


@dataclass(frozen=True)
class KubernetesJob:
    name: str
    namespace: str
    completions: int
    parallelism: int
    backoff_limit: int
    deadline_s: int | None
    rules: tuple[Rule, ...]
    template: PodTemplate
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The cluster's identifier of the Job, new for each that is created."""

    @property
    def at_once(self) -> int:
        """Number of its pods that run in parallel."""
        return min(self.completions, self.parallelism)


@dataclass(frozen=True)
class ReplicatedJob:
    """Equal Jobs of a set."""

    name: str
    jobs: tuple[KubernetesJob, ...]
    after: tuple[tuple[str, str], ...] = ()
    """Names of the set's Jobs that must be Ready or Complete before these start, each with that word."""


@dataclass(frozen=True)
class FailureRule:
    """One rule of a set's failurePolicy: an action for Jobs of these names that fail for these reasons."""

    action: str
    reasons: tuple[str, ...]
    targets: tuple[str, ...]

    def matches(self, replicated_job: str, reason: str) -> bool:
        return (not self.targets or replicated_job in self.targets) and (not self.reasons or reason in self.reasons)


@dataclass(frozen=True)
class JobSet:
    """Jobs that start and end together. A Job alone is a set of one."""

    kind: str
    """Its kind in the file: Job, JobSet or TrainJob."""
    name: str
    members: tuple[ReplicatedJob, ...]
    max_restarts: int = 0
    rules: tuple[FailureRule, ...] = ()
    wait_for_end: bool = False
    """True if a restart creates no Job before all pods of the previous attempt have ended."""
    any_succeeds: bool = False
    """True if one successful Job of `succeeding` ends the set, False if all must succeed."""
    succeeding: tuple[str, ...] = ()
    """Names of the members whose success counts; empty for all."""

    @property
    def jobs(self) -> list[KubernetesJob]:
        return [job for member in self.members for job in member.jobs]


@dataclass(frozen=True)
class Service:
    """A headless Service, which gives pods their names."""

    name: str
    selector: Mapping[str, str]
    publish_not_ready: bool

    def selects(self, labels: Mapping[str, str]) -> bool:
        return bool(self.selector) and all(labels.get(key) == value for key, value in self.selector.items())


@dataclass(frozen=True)
class ConfigMap:
    """Files and values by key."""

    data: Mapping[str, str]
    binary: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        return [*self.data, *self.binary]

    def content(self, key: str) -> bytes:
        return self.binary[key] if key in self.binary else self.data[key].encode()


@dataclass(frozen=True)
class Claim:
    name: str
    folder: str
    """Its folder on this machine."""


@dataclass
class Manifest:
    """All objects of a file."""

    namespaces: dict[str, str] = field(default_factory=dict)
    """Namespace of each object, by kind and name."""
    sets: list[JobSet] = field(default_factory=list)
    runtimes: dict[str, Any] = field(default_factory=dict)
    """Runtimes of TrainJobs, by name."""
    services: dict[str, Service] = field(default_factory=dict)
    config_maps: dict[str, ConfigMap] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    text: str = ""
    """Content of the file; if it is a pipe, it can be read only once."""

    @property
    def job_set(self) -> JobSet:
        return self.sets[0]

    @property
    def job(self) -> KubernetesJob:
        return self.job_set.jobs[0]

    def claim(self, name: str) -> Claim:
        """Return a claim that the manifest creates, or one that it expects to exist."""
        return self.claims.get(name, Claim(name, f"volumes/{name}"))
