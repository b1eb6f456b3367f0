"""Create each pod's environment, run its command with a recording torchrun, and look up names as the pods would."""

import contextlib
import io
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from torch.distributed.run import get_args_parser

from frog.cluster.kubernetes.local_pod import DOMAIN, expand, pod_environment, pod_labels
from frog.cluster.kubernetes.manifest import Manifest, read_manifest
from frog.cluster.kubernetes.manifest_text import ManifestError, load_documents
from frog.learn.grader.grade import Grade
from frog.learn.grader.program import Ended
from frog.learn.grader.words import count

PODS, RANKS, RESTARTS, SHM = 2, 2, 3, 1 << 30
MOST = 64
"""The number of ranks that the check reads."""
GPU = "nvidia.com/gpu"
NOTE = f"""#!{sys.executable} -IS
import json, os, sys
name = "notes/%d.json" % os.getpid()
json.dump({{"words": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "env": dict(os.environ)}}, open(name, "w"))
"""
KINDS = {"Job", "Service", "ConfigMap", "PersistentVolumeClaim"}
"""Kinds of objects that Frog's reader understands."""
PROGRAMS = ("torchrun", "python", "python3")
WAITS = ("nslookup", "getent", "host", "dig", "sleep")
"""Commands with which a shell may wait for the name; they succeed immediately."""


@dataclass(frozen=True)
class Process:
    """A rank, as its launcher would start it. `rank` is None if the rendezvous assigns it."""

    pod: int
    rank: int | None
    world: int
    host: str
    port: str
    id: str = ""
    """Id of a rendezvous that assigns the ranks."""


def check(grade: Grade) -> None:
    """Check the pods, their settings, whether they find each other, and their restarts and resources."""
    documents = load(grade)
    manifest = read(grade, documents)
    check_pods(grade, manifest)
    processes = [each for pod in range(PODS) for each in started(grade, manifest, pod)]
    check_ranks(grade, processes)
    check_names(grade, manifest, processes)
    check_restarts(grade, manifest)
    check_gpus(grade, documents)
    check_shm(grade, manifest)
    grade.measured("pods", f"{PODS} at the same time, {len(processes)} ranks")
    grade.measured("the ranks connect to", f"{processes[0].host}, port {processes[0].port}")
    grade.measured("restarts of the world", f"{RESTARTS}: backoffLimit {manifest.job.backoff_limit}")
    grade.predicted("rank", 1 * RANKS + 1)
    grade.predicted("failures", RESTARTS * PODS)


# ---- the file --------------------------------------------------------------------------------------------------------


def load(grade: Grade) -> list[Any]:
    try:
        return load_documents(grade.text("job.yaml"))
    except ValueError as problem:
        grade.reject("not-yaml", f"job.yaml is not valid YAML: {' '.join(str(problem).split())[:300]}")


def part(value: Any, *keys: str) -> Any:
    """Return the value under these keys, or None if there is no such value."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def one(documents: list[Any], kind: str) -> Any:
    return next((each for each in documents if part(each, "kind") == kind), None)


def read(grade: Grade, documents: list[Any]) -> Manifest:
    """Read the manifest with Frog's reader."""
    try:
        return read_manifest(grade.folder / "job.yaml")
    except ManifestError as problem:
        explain(grade, documents, str(problem).replace(f"{grade.folder}/", "").splitlines())


def explain(grade: Grade, documents: list[Any], said: list[str]) -> NoReturn:
    """Reject what the reader refused, with a specific misconception if one is known."""
    job, service = one(documents, "Job"), one(documents, "Service")
    mistakes = " ".join(line.strip() for line in said if line.startswith("  - "))[:500]
    if part(job, "spec", "template", "spec", "restartPolicy") == "Always":
        grade.reject(
            "restarts-alone", f"The Job's pods have restartPolicy Always, which Kubernetes rejects. {mistakes}"
        )
    if job is not None and part(job, "spec", "completionMode") in (None, "NonIndexed"):
        grade.reject(
            "pods-without-number", f"The Job's pods have no index, because completionMode is not Indexed. {mistakes}"
        )
    if service is not None and part(service, "spec", "clusterIP") != "None":
        found = part(service, "spec", "clusterIP") or "missing"
        grade.reject("service-with-an-address", f"The Service's clusterIP is {found}: one address for {PODS} pods.")
    if part(container_of(documents), "resources", GPU) is not None:
        grade.reject("gpu-not-a-limit", f"{GPU} is next to requests and limits, not inside. {mistakes}")
    request = part(container_of(documents), "resources", "requests", GPU)
    if request is not None and str(request) != gpus_in_limits(documents):
        grade.reject("gpu-not-a-limit", f"The container requests {request} of {GPU} without that limit. {mistakes}")
    kinds = [part(each, "kind") for each in documents]
    other_kinds = kinds.count("Job") != 1 or not KINDS.issuperset(kinds)
    grade.reject("unknown" if other_kinds else "not-a-manifest", f"{said[0]} {mistakes}")


# ---- pods and ranks --------------------------------------------------------------------------------------------------


def check_pods(grade: Grade, manifest: Manifest) -> None:
    """Check that two pods run at the same time."""
    job = manifest.job
    if job.completions != PODS:
        id = "a-pod-a-rank" if job.completions == PODS * RANKS else "unknown"
        grade.reject(id, f"The Job makes {job.completions} pods, but the world is {PODS} pods with {RANKS} ranks each.")
    if job.parallelism < PODS:
        observed = f"The Job runs {job.parallelism} pod at a time: pod 0 waits for pod 1, which starts"
        grade.reject("one-after-the-other", f"{observed} when pod 0 has ended.")


def address_of(pod: int) -> str:
    return f"10.0.{pod}.7"


def started(grade: Grade, manifest: Manifest, pod: int) -> list[Process]:
    """Return a pod's ranks: run its command with torchrun and Python replaced by recording programs."""
    container = manifest.job.template.container
    env = pod_environment(manifest, manifest.job, pod, f"{manifest.job.name}-{pod}-xyz12", address_of(pod), None)
    words = [expand(word, env) for word in (*container.command, *container.args)]
    pairs = [f"{name}={value}" for name, value in env.items() if name != "PATH"]
    script = 'mkdir notes && chmod +x bin/* && PATH="$PWD/bin:/usr/bin:/bin" && exec "$@"'
    files = {f"bin/{name}": NOTE for name in PROGRAMS} | {f"bin/{name}": "#!/bin/sh\n" for name in WAITS}
    ended = grade.program(
        ["env", "-i", "PATH=/usr/bin:/bin", *pairs, "sh", "-c", script, "pod", *words], files=files, wall_s=10
    )
    notes = [noted(grade, pod, ended, path.name) for path in sorted((ended.folder / "notes").glob("*.json"))]
    if not notes:
        said = (ended.err or ended.out).strip()[-300:]
        grade.reject("unknown", f"Pod {pod} starts neither torchrun nor Python, and ends with {ended.code}. {said}")
    launched = [note for note in notes if note["words"][1:2] != ["-c"]]
    return [each for note in launched for each in ranks_of(grade, pod, note["words"], note["env"])]


def noted(grade: Grade, pod: int, ended: Ended, name: str) -> dict[str, Any]:
    """Return the arguments and environment of a program that the pod started."""
    try:
        note = json.loads(grade.written(ended, f"notes/{name}") or "")
        return {"words": list(map(str, note["words"])), "env": dict(note["env"])}
    except (ValueError, RecursionError, KeyError, TypeError):
        grade.reject("unknown", f"Pod {pod} wrote into notes/, where only torchrun and Python record their arguments.")


def ranks_of(grade: Grade, pod: int, words: list[str], env: dict[str, str]) -> list[Process]:
    """Return the ranks that one program of a pod becomes."""
    if words[1:3] == ["-m", "frog.cluster.kubernetes.pod"]:
        words = words[words.index("torchrun") :] if "torchrun" in words else words
    elif words[1:3] == ["-m", "torch.distributed.run"]:
        words = ["torchrun", *words[3:]]
    if words[0] == "torchrun":
        return ranks_of_torchrun(grade, pod, words[1:], env)
    found = [env.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
    if not (found[0].isdecimal() and found[1].isdecimal()):
        shown = f"'{' '.join(words)[:200]}' without torchrun"
        grade.reject("unknown", f"Pod {pod} starts {shown}, with RANK={found[0]!r} and WORLD_SIZE={found[1]!r}.")
    return [Process(pod, int(found[0]), int(found[1]), found[2], found[3])]


def ranks_of_torchrun(grade: Grade, pod: int, words: list[str], env: dict[str, str]) -> list[Process]:
    """Parse arguments and PET_ variables as torchrun does."""
    said = io.StringIO()
    given = {name: value for name, value in env.items() if name.startswith("PET_")}
    with mock.patch.dict(os.environ, given), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            parser = get_args_parser()
            parser.prog = "torchrun"
            args = parser.parse_args(words)
            nodes, local = int(args.nnodes.split(":")[-1]), local_ranks(args.nproc_per_node)
            fewest, node = int(args.nnodes.split(":")[0]), int(args.node_rank)
        except (SystemExit, ValueError) as problem:
            refuse(grade, pod, f"{problem} {said.getvalue()}")
    if not args.module or args.training_script != "frog.train" or "--continue" not in args.training_script_args:
        program = " ".join([args.training_script, *args.training_script_args])
        grade.reject("unknown", f"Pod {pod}: torchrun starts '{program}', not frog.train FILE --continue.")
    if not 0 <= local <= MOST or not 0 <= node <= MOST:
        grade.reject(
            "unknown", f"Pod {pod}: torchrun would start {local} ranks as node {node}; it should start {RANKS}."
        )
    if args.rdzv_backend not in ("static", "c10d"):
        grade.reject("unknown", f"Pod {pod}: this cluster has no rendezvous of kind {args.rdzv_backend}.")
    if fewest != nodes:
        grade.reject(
            "unknown", f"Pod {pod}: --nnodes={args.nnodes} may start with {fewest} nodes; all {PODS} are needed."
        )
    if args.max_restarts:
        text = f"Pod {pod}: torchrun restarts its ranks up to {count(args.max_restarts, 'time')} before the pod fails"
        grade.reject("torchrun-restarts-too", f"{text}. Both pods should fail immediately when a rank dies.")
    static = args.rdzv_backend == "static"
    host, port = args.master_addr, str(args.master_port or 29500)
    if args.rdzv_endpoint:
        host, _, port = args.rdzv_endpoint.partition(":")
    if args.standalone:
        host = "localhost"
    return [
        Process(pod, node * local + each, nodes * local, host, port or "29500")
        if static
        else Process(pod, None, nodes * local, host, port or "29500", args.rdzv_id)
        for each in range(local)
    ]


def local_ranks(words: str) -> int:
    """Parse --nproc-per-node; a pod has one GPU for each rank."""
    return RANKS if words in ("gpu", "auto") else int(words)


def refuse(grade: Grade, pod: int, said: str) -> NoReturn:
    last = said.strip().splitlines()[-1].strip()
    left = re.search(r"\$\((\w+)\)", last)
    escaped = left is not None and f"$$({left[1]})" in grade.text("job.yaml")
    id = "no-such-variable" if left and not escaped else "shell-variable" if "$" in last else "unknown"
    grade.reject(id, f"Pod {pod}: torchrun rejects its arguments: {last[:300]}")


def check_ranks(grade: Grade, processes: list[Process]) -> None:
    """Check that there are four ranks, each once, two in each pod."""
    counts = [sum(each.pod == pod for each in processes) for pod in range(PODS)]
    worlds = sorted({each.world for each in processes})
    if counts != [RANKS] * PODS:
        grade.reject(
            "unknown", f"{counts[0]} ranks start in pod 0 and {counts[1]} in pod 1; there should be {RANKS} in each."
        )
    if worlds != [PODS * RANKS]:
        shown = " and ".join(map(str, worlds))
        grade.reject("unknown", f"WORLD_SIZE is {shown}, but {PODS} pods with {RANKS} ranks each make {PODS * RANKS}.")
    ranks = [each.rank for each in processes]
    if None in ranks:
        if any(rank is not None for rank in ranks) or len({each.id for each in processes}) > 1:
            grade.reject("unknown", "The torchruns in the two pods use different rendezvous backends or ids.")
        return
    shown = f"RANK in pod 0: {ranks[0]}, {ranks[1]}; in pod 1: {ranks[2]}, {ranks[3]}."
    if sorted(ranks[:RANKS]) == sorted(ranks[RANKS:]):
        grade.reject("every-pod-is-node-0", shown)
    if sorted(ranks) != list(range(PODS * RANKS)) or abs(ranks[0] - ranks[1]) != 1:
        grade.reject("unknown", shown)


# ---- names -----------------------------------------------------------------------------------------------------------


def named(manifest: Manifest) -> tuple[dict[str, set[int]], str, str]:
    """Return the names that the cluster's DNS server knows and, if there are none, a misconception and the cause."""
    job, template = manifest.job, manifest.job.template
    service = manifest.services.get(template.subdomain or "")
    if template.subdomain is None:
        return {}, "no-subdomain", "The pods have no subdomain, and therefore no name"
    if service is None:
        return {}, "no-subdomain", f"The pods' subdomain is {template.subdomain}, but no Service has that name"
    labels = pod_labels(job, 0)
    pods = [pod for pod in range(job.completions) if service.selects(pod_labels(job, pod))]
    if not pods:
        wanted = ", ".join(f"{key}={value}" for key, value in service.selector.items()) or "nothing"
        has = ", ".join(f"{key}={value}" for key, value in labels.items())
        return {}, "selects-nobody", f"The Service selects {wanted}, but a pod has {has}"
    probes = (template.container.startup, template.container.readiness)
    late = any(probe is not None and "frog.cluster.kubernetes.probe" in probe.command for probe in probes)
    if late and not service.publish_not_ready:
        return (
            {},
            "named-when-ready",
            "No pod is ready before its ranks train, and no pod has a name before it is ready",
        )
    domain = f"{service.name}.{job.namespace}.{DOMAIN}"
    return {f"{job.name}-{pod}.{domain}": {pod} for pod in pods} | {domain: set(pods)}, "", ""


def look_up(name: str, manifest: Manifest, pod: int, known: dict[str, set[int]]) -> set[int]:
    """Resolve a name to pods from within one of them, which reads its own /etc/hosts first."""
    job, name = manifest.job, name.lower().rstrip(".")
    own = f"{job.name}-{pod}"
    if name in (own, "localhost", address_of(pod), f"{own}.{job.template.subdomain}.{job.namespace}.{DOMAIN}"):
        return {pod}
    if name.startswith("127.") or name == "::1":
        return {pod}
    addresses = {address_of(each): {each} for each in range(job.completions)}
    search = ("", f".{job.namespace}.{DOMAIN}", f".{DOMAIN}", f".{DOMAIN.partition('.')[2]}")
    return addresses.get(name) or next((known[name + end] for end in search if name + end in known), set())


def check_names(grade: Grade, manifest: Manifest, processes: list[Process]) -> None:
    """Check that from each pod the name of the rendezvous resolves to the pod of rank 0, and to no other."""
    known, id, missing = named(manifest)
    first = {each.pod for each in processes if each.rank == 0}
    found = [look_up(each.host, manifest, each.pod, known) for each in processes]
    hosts = [(f"Pod {pod}", processes[place].host, say(found[place])) for pod, place in ((0, 0), (1, -1))]
    shown = ". ".join(f"{who} looks up '{host}' and finds {whom}" for who, host, whom in hosts) + "."
    if any(len(pods) > 1 for pods in found):
        grade.reject("service-is-a-pod", shown)
    if [pods for pods in found if pods] and all(
        pods == {each.pod} for pods, each in zip(found, processes, strict=True)
    ):
        grade.reject("own-host", f"{shown} Rank 0 is in pod 0.")
    if not all(found):
        if id:
            grade.reject(id, f"{missing}. {shown}")
        grade.reject("host-name-alone" if "." not in processes[-1].host else "unknown", shown)
    if any(pods != found[0] for pods in found) or (first and found[0] != first):
        grade.reject("another-pod", f"{shown} Rank 0 is in pod {', '.join(map(str, first)) or 'one of them'}.")
    ports = sorted({each.port for each in processes})
    if len(ports) > 1 or not (ports[0].isdecimal() and 0 < int(ports[0]) < 65536):
        grade.reject("unknown", f"The ranks use port {', '.join(ports)}.")


def say(pods: set[int]) -> str:
    return " and ".join(f"pod {pod}" for pod in sorted(pods)) or "nothing"


# ---- restarts and resources ------------------------------------------------------------------------------------------


def check_restarts(grade: Grade, manifest: Manifest) -> None:
    """Check that the Job restarts after three failures of both pods, but not after a fourth."""
    job = manifest.job
    for code in (1, 134, 137, 139):
        rule = next((rule for rule in job.rules if rule.matches(code)), None)
        if rule is not None and rule.action == "Ignore":
            grade.reject(
                "restarts-for-ever", f"The Job ignores a pod that ends with {code}: the world restarts forever."
            )
        if rule is not None and rule.action == "FailJob":
            grade.reject(
                "restarts-of-the-world",
                f"A pod that ends with {code} fails the Job: it restarts 0 times, not {RESTARTS}.",
            )
    least = RESTARTS * PODS
    most = least + PODS - (job.template.restart_policy == "Never")
    observed = f"{RESTARTS} restarts of the world cost {PODS} failures each; backoffLimit is {job.backoff_limit}, which"
    if job.backoff_limit < least:
        grade.reject("restarts-of-the-world", f"{observed} is used up after {job.backoff_limit // PODS}.")
    if job.backoff_limit > most:
        grade.reject("restarts-for-ever", f"{observed} allows {job.backoff_limit // PODS}.")


def container_of(documents: list[Any]) -> Any:
    containers = part(one(documents, "Job"), "spec", "template", "spec", "containers")
    return containers[0] if isinstance(containers, list) and containers else None


def gpus_in_limits(documents: list[Any]) -> str | None:
    found = part(container_of(documents), "resources", "limits", GPU)
    return None if found is None else str(found)


def check_gpus(grade: Grade, documents: list[Any]) -> None:
    """Check that the limits have one GPU for each rank of a pod, and that a request, if any, equals the limit."""
    limit, request = gpus_in_limits(documents), part(container_of(documents), "resources", "requests", GPU)
    if limit is None:
        where = f"requests {request} of {GPU} and has" if request is not None else f"requests no {GPU}: it has"
        grade.reject("gpu-not-a-limit", f"The container {where} no limit for it; the limit should be {RANKS}.")
    if limit != str(RANKS):
        grade.reject(
            "gpus-of-another-size",
            f"A pod with {RANKS} ranks gets {limit} {'GPU' if limit == '1' else 'GPUs'}, both pods {PODS} times that.",
        )
    if request is not None and str(request) != limit:
        grade.reject("gpu-not-a-limit", f"The request of {GPU} is {request}, its limit {limit}; they must be equal.")


def check_shm(grade: Grade, manifest: Manifest) -> None:
    """Check for a volume in memory of at least 1 GiB."""
    template = manifest.job.template
    mount = next((mount for mount in template.container.mounts if mount.path == "/dev/shm"), None)
    if mount is None:
        grade.reject("shm-is-large", f"/dev/shm has no volume: it has 64 MiB, but the ranks need {SHM >> 20} MiB.")
    volume = template.volumes[mount.volume]
    if not volume.in_memory or mount.read_only:
        grade.reject("unknown", f"The volume {volume.name} at /dev/shm is not in memory, or is read-only.")
    if volume.size_bytes is not None and volume.size_bytes < SHM:
        size = f"{volume.size_bytes / (1 << 20):.4g}"
        grade.reject("shm-is-large", f"/dev/shm has {size} MiB, but the ranks need {SHM >> 20} MiB.")
