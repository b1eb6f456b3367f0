"""`frog submit RUN.toml --to kubernetes`: render the manifests, and print them or hand them to kubectl."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from frog.config import load_run_config
from frog.core.errors import LaunchError
from frog.launch.kubernetes.wish import Wish

_KUBECTL_TIMEOUT_S = 120


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `--to kubernetes` alone; `--nodes`, `--ranks-per-node` and the like are everyone's."""
    group = parser.add_argument_group("--to kubernetes")
    group.add_argument(
        "--kind",
        choices=["job", "trainjob"],
        default="job",
        help="job: an indexed Job and a headless Service, for any cluster; trainjob: Kubeflow Trainer's",
    )
    group.add_argument("--image", default=Wish.image, help="with Frog in it, as the Dockerfile makes it (%(default)s)")
    group.add_argument("--namespace", default=Wish.namespace, metavar="NAME", help="default: %(default)s")
    group.add_argument("--name", metavar="NAME", help="of the Job; default: frog- and the run's name")
    group.add_argument(
        "--gpus",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one NVIDIA GPU for each rank (the default), or none",
    )
    group.add_argument(
        "--restarts",
        type=int,
        default=Wish.restarts,
        metavar="N",
        help="how often a failed world may start again (default: %(default)s)",
    )
    group.add_argument(
        "--claim", metavar="NAME", help="an existing volume claim for data/ and runs/; default: make one"
    )
    group.add_argument("--storage", default=Wish.storage, metavar="50Gi", help="size of the volume that is made")
    group.add_argument("--storage-class", metavar="NAME", help="of the volume that is made; default: the cluster's")
    group.add_argument("--cpus", type=int, metavar="N", help="for each pod")
    group.add_argument("--memory", metavar="64Gi", help="for each pod")
    group.add_argument("--runtime", default=Wish.runtime, metavar="NAME", help="trainjob: of the cluster (%(default)s)")


def submit_to_kubernetes(args: argparse.Namespace) -> int:
    """Print the manifests (`--dry-run`) or apply them; return the exit code.

    Raises:  UsageError or ConfigError before anything is sent; LaunchError if kubectl is missing or fails.
    """
    from frog.launch.kubernetes.job import render

    wish = _wish(args)
    text = render(wish, args.kind)
    if args.dry_run:
        sys.stdout.write(text)
        return 0
    print(_apply(text), end="")
    print(_next_steps(wish, args.kind))
    return 0


def _wish(args: argparse.Namespace) -> Wish:
    from frog.launch.kubernetes.job import read_files, with_settings

    run_file = Path(args.run_file)
    config = load_run_config(run_file, args.set)
    files, needed = read_files(run_file, config)
    return Wish(
        config=config,
        files=files,
        run_file=run_file.name,
        settings=with_settings(args.set, needed),
        nodes=args.nodes,
        ranks_per_node=args.ranks_per_node or Wish.ranks_per_node,
        gpus=args.gpus,
        image=args.image,
        namespace=args.namespace,
        name=args.name,
        claim=args.claim,
        storage=args.storage,
        storage_class=args.storage_class,
        cpus=args.cpus,
        memory=args.memory,
        restarts=args.restarts,
        runtime=args.runtime,
        command=_command(args),
    )


def _command(args: argparse.Namespace) -> str:
    """The command line that asks for the same, without what is said by default."""
    words = ["frog", "submit", str(args.run_file), "--to", "kubernetes"]
    words += ["--nodes", str(args.nodes), "--ranks-per-node", str(args.ranks_per_node or Wish.ranks_per_node)]
    if args.kind != "job":
        words += ["--kind", args.kind]
    if not args.gpus:
        words.append("--no-gpus")
    for option in (
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
    ):
        value = getattr(args, option)
        if value is not None and value != getattr(Wish, option):
            words += [f"--{option.replace('_', '-')}", str(value)]
    words += [word for setting in args.set for word in ("--set", setting)]
    return " ".join(shlex.join(words).split())


def _apply(text: str) -> str:
    """Hand the manifests to kubectl; return what it says."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise LaunchError(
            "kubectl is not installed, so nothing was handed in",
            "--dry-run > job.yaml prints the manifests; `frog run --from job.yaml` tries them on this machine",
        )
    try:
        done = subprocess.run(
            [kubectl, "apply", "--filename", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"kubectl apply: no answer within {_KUBECTL_TIMEOUT_S} s", "`kubectl cluster-info` asks which cluster it is"
        ) from None
    if done.returncode != 0:
        raise LaunchError(
            f"kubectl apply ended with exit code {done.returncode}\n{(done.stderr or done.stdout).strip()}",
            _hint(done.stderr),
        )
    return done.stdout


def _hint(words: str) -> str:
    """What to do about an error of kubectl."""
    if "immutable" in words:
        return "a Job of that name is there and cannot be changed: `kubectl delete job NAME`, or another --name"
    if "no matches for kind" in words:
        return "the cluster has no Kubeflow Trainer: --kind job needs none"
    if "connection" in words or "refused" in words or "localhost:8080" in words:
        return "kubectl reaches no cluster: `kubectl config get-contexts` lists those it knows; --dry-run needs none"
    return "--dry-run shows what was handed in"


def _next_steps(wish: Wish, kind: str) -> str:
    label = "batch.kubernetes.io/job-name" if kind == "job" else "jobset.sigs.k8s.io/jobset-name"
    space = f"-n {wish.namespace} "
    return (
        f"\nwatch it:    kubectl {space}get pods -l {label}={wish.job_name} -w\n"
        f"its output:  kubectl {space}logs -f -l {label}={wish.job_name} --prefix --max-log-requests {wish.nodes}\n"
        f"end it:      kubectl {space}delete {kind} {wish.job_name}    (a checkpoint is saved first)\n"
        f"the run:     runs/{wish.config.name} on the volume {wish.claim or 'frog-work'}: logs, events, checkpoints"
    )
