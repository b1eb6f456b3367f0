"""A pod's template: its container's command, files and probes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frog.cluster.kubernetes.manifest_text import Fields, is_inner_path

_FIELD_PATHS = ("metadata.name", "metadata.namespace", "status.podIP")
_VARIABLE = re.compile(r"[ -<>-~]+")
_FIELD_OF_MAP = re.compile(r"metadata\.(annotations|labels)\['([^']+)'\]")


@dataclass(frozen=True)
class Variable:
    """A variable of the environment: a value, or the source of one."""

    name: str
    value: str | None = None
    field_path: str | None = None
    config_map: tuple[str, str] | None = None


@dataclass(frozen=True)
class VolumeMount:
    volume: str
    path: str
    read_only: bool


@dataclass(frozen=True)
class Volume:
    """A new folder or file system in memory, the files of a ConfigMap, or a claim's folder."""

    name: str
    config_map: str | None = None
    items: Mapping[str, str] = field(default_factory=dict)
    """Keys of the ConfigMap, and the names of their files; empty for all keys."""
    mode: int = 0o644
    """Permissions of the ConfigMap's files."""
    claim: str | None = None
    in_memory: bool = False
    size_bytes: int | None = None


@dataclass(frozen=True)
class Probe:
    """A command that checks a pod, its interval, and its allowed number of failures."""

    command: tuple[str, ...]
    delay_s: int
    period_s: int
    timeout_s: int
    failures: int


@dataclass(frozen=True)
class Container:
    name: str
    command: list[str]
    args: list[str]
    folder: str
    env: tuple[Variable, ...]
    mounts: tuple[VolumeMount, ...]
    gpus: int
    writable: bool
    """True if it may write to its root, not only to its volumes."""
    startup: Probe | None
    liveness: Probe | None
    readiness: Probe | None


@dataclass(frozen=True)
class PodTemplate:
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    subdomain: str | None
    restart_policy: str
    grace_s: int
    uid: int
    gid: int
    container: Container
    volumes: Mapping[str, Volume]


def read_template(
    template: Fields, notes: list[str], restart_policy: str | None = None, further: Sequence[Volume] = ()
) -> PodTemplate:
    """Return a Job's `spec.template`.

    restart_policy: its default. further: volumes that the pods may mount without naming them.
    """
    meta = template.object("metadata")
    labels, annotations = meta.text_map("labels"), meta.text_map("annotations")
    meta.done()
    spec = template.object("spec")
    template.done()
    volumes = {volume.name: volume for volume in (*further, *map(_read_volume, spec.objects("volumes")))}
    security = spec.object("securityContext")
    spec.refuse("initContainers", "a pod has one container")
    containers = list(spec.objects("containers"))
    if len(containers) != 1:
        spec.problem(f"{len(containers)} containers; Frog supports one per pod", "containers")
        containers = containers[:1] or [Fields({}, spec.at("containers[0]"), [])]
    own_security = containers[0].object("securityContext")
    uid = own_security.optional_number("runAsUser")
    uid = security.number("runAsUser", 0) if uid is None else _passed(security, "runAsUser", uid)
    gid = own_security.optional_number("runAsGroup")
    gid = security.number("runAsGroup", 0) if gid is None else _passed(security, "runAsGroup", gid)
    writable = _read_security(security, own_security, uid, notes)
    result = PodTemplate(
        labels,
        annotations,
        spec.optional_text("subdomain"),
        spec.text("restartPolicy", restart_policy, choices=["Never", "OnFailure"]),
        spec.number("terminationGracePeriodSeconds", 30),
        uid,
        gid,
        _read_container(containers[0], volumes, writable, notes),
        volumes,
    )
    for key in ("automountServiceAccountToken", "enableServiceLinks"):
        if spec.flag(key, key != "enableServiceLinks"):
            notes.append(f"{key}: ignored, because this cluster has no API server")
    ignored = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName")
    notes += [
        f"{key}: ignored, because this cluster is one machine" for key in spec.without_effect(*ignored, "schedulerName")
    ]
    spec.without_effect("imagePullSecrets", "serviceAccountName")
    spec.done()
    return result


def _passed(fields: Fields, key: str, value: int) -> int:
    """Read the security context; the container's own settings override its pod's."""
    fields.without_effect(key)
    return value


def _read_security(pod: Fields, container: Fields, uid: int, notes: list[str]) -> bool:
    """Check both security contexts; return True if the container may write to its root."""
    must_not_be_root = container.flag("runAsNonRoot") or pod.flag("runAsNonRoot")
    pod.without_effect("runAsNonRoot")
    if must_not_be_root and uid == 0:
        pod.problem("true, but runAsUser is 0 or missing: the kubelet would not start the container", "runAsNonRoot")
    if container.flag("privileged"):
        container.problem("true: not supported, because pods have no privileges here", "privileged")
    if container.flag("allowPrivilegeEscalation", True):
        notes.append("allowPrivilegeEscalation: always false here")
    writable = not container.flag("readOnlyRootFilesystem")
    capabilities = container.object("capabilities")
    if capabilities.texts("add"):
        capabilities.problem("not supported, because pods have no capabilities here", "add")
    if "ALL" not in capabilities.texts("drop"):
        notes.append("capabilities: a pod never has any here")
    capabilities.done()
    if pod.without_effect("seccompProfile") + container.without_effect("seccompProfile"):
        notes.append("seccompProfile: ignored, because no system calls are filtered here")
    pod.without_effect("fsGroup", "fsGroupChangePolicy", "supplementalGroups")
    pod.done()
    container.done()
    return writable


def _read_container(fields: Fields, volumes: Mapping[str, Volume], writable: bool, notes: list[str]) -> Container:
    name = fields.text("name")
    how = "what a pod writes there is kept in memory until it ends" if writable else "read-only"
    notes.append(f"image {fields.text('image')}: replaced by this machine's files and Python; {how}")
    mounts = tuple(_read_mount(mount, volumes) for mount in fields.objects("volumeMounts"))
    container = Container(
        name,
        fields.texts("command"),
        fields.texts("args"),
        fields.text("workingDir", "/"),
        tuple(_read_variable(variable) for variable in fields.objects("env")),
        mounts,
        _read_resources(fields.object("resources"), notes),
        writable,
        _read_probe(fields, "startupProbe"),
        _read_probe(fields, "livenessProbe"),
        _read_probe(fields, "readinessProbe"),
    )
    if not container.command:
        fields.problem("missing, and Frog does not read the image's default command", "command")
    fields.without_effect("ports", "imagePullPolicy", "terminationMessagePolicy")
    fields.done()
    return container


def _read_resources(resources: Fields, notes: list[str]) -> int:
    asked: dict[str, Any] = {}
    for key in ("requests", "limits"):
        amounts = resources.object(key)
        for name in ("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"):
            amount = amounts.quantity(name)
            if amount is not None:
                asked[name] = amount
        amounts.done()
    resources.done()
    if named := [name for name in ("cpu", "memory", "ephemeral-storage") if name in asked]:
        notes.append(f"{', '.join(named)}: not enforced here")
    return int(asked.get("nvidia.com/gpu", 0))


def _read_variable(fields: Fields) -> Variable:
    name = fields.text("name")
    if not _VARIABLE.fullmatch(name):
        fields.problem(f"{name!r}: not a valid Kubernetes name", "name")
    if not fields.has("valueFrom"):
        variable = Variable(name, fields.text("value", ""))
        fields.done()
        return variable
    source = fields.object("valueFrom")
    fields.done()
    if source.has("configMapKeyRef"):
        reference = source.object("configMapKeyRef")
        source.done()
        variable = Variable(name, config_map=(reference.text("name"), reference.text("key")))
        reference.done()
        return variable
    reference = source.object("fieldRef")
    source.done()
    path = reference.text("fieldPath")
    reference.without_effect("apiVersion")
    reference.done()
    if path not in _FIELD_PATHS and not _FIELD_OF_MAP.fullmatch(path):
        reference.problem(
            f"{path!r}: Frog supports only {', '.join(_FIELD_PATHS)}, metadata.labels['...'] or annotations"
        )
    return Variable(name, field_path=path)


def field_value(path: str, known: Mapping[str, Any]) -> str:
    """Return the value of a fieldRef; a missing label or annotation is empty."""
    match = _FIELD_OF_MAP.fullmatch(path)
    return str(known[match[1]].get(match[2], "") if match else known[path])


def _read_mount(fields: Fields, volumes: Mapping[str, Volume]) -> VolumeMount:
    mount = VolumeMount(fields.text("name"), fields.text("mountPath").rstrip("/"), fields.flag("readOnly"))
    fields.done()
    if mount.volume not in volumes:
        fields.problem(f"{mount.volume!r}: no such volume", "name")
    if not mount.path.startswith("/") or ".." in mount.path or mount.path.startswith("/proc"):
        fields.problem(f"{mount.path or '/'}: not a valid mount path", "mountPath")
    return mount


def _read_volume(fields: Fields) -> Volume:
    name = fields.name("name")
    if fields.has("emptyDir"):
        empty = fields.object("emptyDir")
        medium = empty.text("medium", "", choices=["Memory", ""])
        volume = Volume(name, in_memory=medium == "Memory", size_bytes=empty.quantity("sizeLimit"))
        empty.done()
    elif fields.has("configMap"):
        source = fields.object("configMap")
        items = dict(map(_read_item, source.objects("items")))
        mode = source.number("defaultMode", 0o644, most=0o777)
        volume = Volume(name, config_map=source.text("name"), items=items, mode=mode)
        source.done()
    elif fields.has("persistentVolumeClaim"):
        claim = fields.object("persistentVolumeClaim")
        volume = Volume(name, claim=claim.name("claimName"))
        claim.done()
    else:
        volume = Volume(name)
        fields.problem("must be an emptyDir, a configMap or a persistentVolumeClaim; Frog supports no other volumes")
        return volume
    fields.done()
    return volume


def _read_item(item: Fields) -> tuple[str, str]:
    key, path = item.text("key"), item.text("path")
    item.without_effect("mode")
    item.done()
    if not is_inner_path(path):
        item.problem(f"{path!r}: not a path inside the volume", "path")
    return key, path


def _read_probe(container: Fields, key: str) -> Probe | None:
    if not container.has(key):
        return None
    fields = container.object(key)
    action = fields.object("exec")
    command = tuple(action.texts("command"))
    action.done()
    if not command:
        fields.problem("must be a command (exec.command); Frog supports no other probes")
    probe = Probe(
        command,
        fields.number("initialDelaySeconds", 0),
        fields.number("periodSeconds", 10, least=1),
        fields.number("timeoutSeconds", 1, least=1),
        fields.number("failureThreshold", 3, least=1),
    )
    fields.number("successThreshold", 1, least=1)
    fields.done()
    return probe
