"""`frog submit --to kubernetes`: render the manifests, and print them or pass them to kubectl."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from frog.cluster.submit.cluster_programs import call_cluster_program
from frog.cluster.submit.kubernetes_manifests import KubernetesRequest, read_files, read_program, render, with_settings
from frog.cluster.submit.submitted_work import program_work
from frog.core.config import load_run_config
from frog.core.errors import UsageError
from frog.core.terminal import printable
from frog.core.user_input import at_least
from frog.observe.environment import HOOK

_OPTIONS = (
    "image",
    "namespace",
    "storage",
    "runtime",
    "restarts",
    "name",
    "claim",
    "storage_class",
    "cpus",
    "memory",
)
"""Fields of a KubernetesRequest, with its defaults."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only `--to kubernetes` has."""
    group = parser.add_argument_group("--to kubernetes")
    group.add_argument(
        "--kind",
        choices=["job", "trainjob"],
        default="job",
        help="job: an indexed Job and a headless Service, for any cluster; trainjob: Kubeflow Trainer's",
    )
    group.add_argument(
        "--image",
        help=f"an image with Frog, as the Dockerfile builds it (default: {KubernetesRequest.image}); for -- COMMAND: "
        "one with torch and the program's packages",
    )
    group.add_argument("--namespace", metavar="NAME", help=f"default: {KubernetesRequest.namespace}")
    group.add_argument("--name", metavar="NAME", help="name of the Job (default: frog- and the run's name)")
    group.add_argument(
        "--gpus",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one NVIDIA GPU per rank (the default), or none",
    )
    group.add_argument(
        "--restarts",
        type=at_least(0),
        metavar="N",
        help=f"job: number of restarts after a failure (default: {KubernetesRequest.restarts}; for -- COMMAND: 0)",
    )
    group.add_argument(
        "--claim", metavar="NAME", help="an existing volume claim for data/ and runs/ (default: create one)"
    )
    group.add_argument(
        "--storage", metavar="SIZE", help=f"size of the created volume (default: {KubernetesRequest.storage})"
    )
    group.add_argument(
        "--storage-class", metavar="NAME", help="storage class of the created volume (default: the cluster's)"
    )
    group.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PATTERN",
        help="-- COMMAND: further files or folders that the program needs, such as 'configs/*.yaml'; repeatable",
    )
    group.add_argument("--cpus", type=at_least(1), metavar="N", help="per pod")
    group.add_argument("--memory", metavar="64Gi", help="per pod")
    group.add_argument(
        "--runtime",
        metavar="NAME",
        help=f"trainjob: name of the cluster's runtime (default: {KubernetesRequest.runtime})",
    )


def submit_to_kubernetes(args: argparse.Namespace) -> int:
    """Print the manifests (`--dry-run`) or apply them; return the exit code.

    Raises:  UsageError or ConfigError before anything is sent; LaunchError if kubectl is missing or fails.
    """
    request = _make_request(args)
    text = render(request, args.kind)
    if args.dry_run:
        sys.stdout.write(text)
        return 0
    print(_apply(text, server_side=request.program is not None), end="")
    print(_next_steps(request, args.kind))
    return 0


def _make_request(args: argparse.Namespace) -> KubernetesRequest:
    _refuse_options_without_effect(args)
    if args.program:
        return _request(args, _program_parts(args))
    run_file = Path(args.run_file)
    config = load_run_config(run_file, args.set)
    files, needed = read_files(run_file, config)
    settings = with_settings(args.set, needed)
    return _request(args, {"config": config, "files": files, "run_file": run_file.name, "settings": settings})


def _program_parts(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request that a program determines."""
    if args.image is None:
        raise UsageError(
            "--image: name an image that has torch and the program's packages",
            "--image pytorch/pytorch:TAG, or an image of your own",
        )
    observer = None if args.no_observe else HOOK
    work = program_work(args.program, to="kubernetes", requeue=False, observer=observer, name=args.name)
    files, data = read_program(work, args.include, Path())
    return {"config": work, "files": files, "data": data, "restarts": 0}


def _request(args: argparse.Namespace, parts: dict[str, Any]) -> KubernetesRequest:
    common = {"nodes": args.nodes, "ranks_per_node": _ranks_per_node(args), "gpus": args.gpus}
    return KubernetesRequest(**{**parts, **common, "command": _command(args), **_given(args)})


def _refuse_options_without_effect(args: argparse.Namespace) -> None:
    """Raise UsageError for an option that the requested manifests do not use."""
    reasons = {}
    if args.kind == "trainjob":
        reasons["restarts"] = "the runtime of a TrainJob sets the number of restarts"
    else:
        reasons["runtime"] = "only a TrainJob uses it: --kind trainjob"
    if args.claim is not None:
        reasons["storage"] = reasons["storage_class"] = (
            f"--claim {args.claim} names an existing volume, so none is created"
        )
    for option, why in reasons.items():
        if getattr(args, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} {getattr(args, option)}: {why}", "remove this option")


def _ranks_per_node(args: argparse.Namespace) -> int:
    return KubernetesRequest.ranks_per_node if args.ranks_per_node is None else int(args.ranks_per_node)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given on the command line."""
    return {option: value for option in _OPTIONS if (value := getattr(args, option)) is not None}


def _command(args: argparse.Namespace) -> str:
    """Return the equivalent command line without default values, as one printable line."""
    words = ["frog", "submit", *([] if args.program else [str(args.run_file)]), "--to", "kubernetes"]
    words += ["--nodes", str(args.nodes), "--ranks-per-node", str(_ranks_per_node(args))]
    if args.kind != "job":
        words += ["--kind", args.kind]
    if not args.gpus:
        words.append("--no-gpus")
    for option, value in _given(args).items():
        if value != getattr(KubernetesRequest, option):
            words += [f"--{option.replace('_', '-')}", str(value)]
    words += [word for setting in args.set for word in ("--set", setting)]
    words += [word for pattern in args.include for word in ("--include", pattern)]
    words += ["--no-observe"] if args.no_observe else []
    words += ["--", *args.program] if args.program else []
    line = " ".join(shlex.join(words).split())
    return printable(line)


def _apply(text: str, *, server_side: bool) -> str:
    """Pass the manifests to kubectl; return its output.

    server_side: without it, kubectl copies each object into an annotation, which holds at most 256 KiB.
    """
    return call_cluster_program(
        ["kubectl", "apply", *(["--server-side"] if server_side else []), "--filename", "-"],
        absent=(
            "kubectl is not installed; nothing was submitted",
            "--dry-run > job.yaml prints the manifests; `frog run --from job.yaml` tries them on this machine",
        ),
        unanswered="`kubectl cluster-info` shows the current cluster",
        hint=_hint,
        text=text,
    )


def _hint(words: str) -> str:
    """Return a hint for an error of kubectl."""
    if "immutable" in words:
        return "a Job of that name exists and cannot be changed: `kubectl delete job NAME`, or another --name"
    if "no matches for kind" in words:
        return "the cluster has no Kubeflow Trainer; --kind job works without it"
    if "connection" in words or "refused" in words or "localhost:8080" in words:
        return (
            "kubectl cannot reach a cluster: `kubectl config get-contexts` lists the known ones; --dry-run needs none"
        )
    return "--dry-run prints the submitted manifests"


def _next_steps(request: KubernetesRequest, kind: str) -> str:
    label = "batch.kubernetes.io/job-name" if kind == "job" else "jobset.sigs.k8s.io/jobset-name"
    space, name = f"-n {request.namespace} ", request.job_name
    program = request.program is not None
    run = f"runs/{request.config.name}{'-…' if program else ''} on the volume {request.claim or 'frog-work'}"
    what = "what each rank did, for frog diagnose" if program else "logs, events, checkpoints"
    saves = "(the ranks receive SIGTERM, and SIGKILL 30 s later)" if program else "(a checkpoint is saved first)"
    return (
        f"\nwatch it:    kubectl {space}get pods -l {label}={name} -w\n"
        f"output:      kubectl {space}logs -f -l {label}={name} --prefix --max-log-requests {request.nodes}\n"
        f"end it:      kubectl {space}delete {kind} {name}    {saves}\n"
        f"the run:     {run}: {what}"
    )
