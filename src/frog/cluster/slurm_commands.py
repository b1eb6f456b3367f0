"""`frog slurm up|status|down|env|explain`: a cluster on this machine, and explained job files."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from frog.cluster.jobfile.jobfile_commands import add_explain_parser
from frog.cluster.simulated_cluster import ClusterKind, SiteNames, read_cluster_file, split_names
from frog.core.errors import UsageError
from frog.observe.environment import simulated_gpus

_FOLDER = Path(".slurm")
_NAMES = {
    "partition": "another name of the partition, for job files of another site",
    "feature": "a feature of every node, for --constraint",
    "stub": "a command that does nothing but say so: module, conda",
}


def add_slurm_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog slurm`."""
    parser = commands.add_parser(
        "slurm",
        help="run a Slurm cluster on this machine; explain job files",
        description="Start a real Slurm (or its emulator) here, and use sbatch, squeue, srun as on a cluster.",
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    up = _add(actions, "up", "start a cluster and wait until its nodes are idle", _up)
    up.add_argument("--nodes", type=int, default=2, metavar="N", help="simulated nodes (default: %(default)s)")
    up.add_argument("--gpus-per-node", type=int, default=4, metavar="N", help="simulated GPUs (default: %(default)s)")
    up.add_argument("--cpus-per-node", type=int, default=32, metavar="N", help="simulated CPUs (default: %(default)s)")
    for name, does in _NAMES.items():
        up.add_argument(f"--{name}", action="append", default=[], metavar="NAME[,NAME]", help=does)
    up.add_argument("--emulator", action="store_true", help="start a small emulator instead of Slurm")
    _add(actions, "status", "show daemons, nodes and jobs", _status)
    down = _add(actions, "down", "end all jobs and the cluster", _down)
    down.add_argument("--keep-logs", action="store_true", help="keep the daemons' logs in the folder")
    env = _add(
        actions, "env", 'print the variables that connect a shell to the cluster: eval "$(frog slurm env)"', _env
    )
    env.add_argument("--simulate-gpus", action="store_true", help="let programs for CUDA use the jobs' simulated GPUs")
    add_explain_parser(actions)


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str, handler: object
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="the cluster's folder (default: %(default)s)")
    parser.set_defaults(handler=handler)
    return parser


def _up(args: argparse.Namespace) -> int:
    size = (args.nodes, args.gpus_per_node, args.cpus_per_node)
    site = SiteNames(split_names(args.partition), split_names(args.feature), split_names(args.stub))
    if args.emulator:
        from frog.cluster.emulator import emulated_cluster as emulator

        problem = emulator.up(args.folder, *size, site=site)
        if problem is not None:
            print(problem)
        what = "the Slurm emulator"
    else:
        from frog.cluster.slurm import real_cluster as cluster

        cluster.up(args.folder, *size, site=site, report=print)
        what = "Slurm"
    each = f"{args.gpus_per_node} GPUs and {args.cpus_per_node} CPUs" + (" each" if args.nodes > 1 else "")
    print(
        f"{what} is up: {args.nodes} node{'s' if args.nodes > 1 else ''} with {each}, all simulated, in {args.folder}/"
    )
    print("run once in every shell that uses it:")
    print(f'  eval "$(frog slurm env{_option(args.folder)})"')
    print("then, as on any cluster: sinfo, sbatch config/slurm_example.sbatch, squeue, scancel, srun")
    return 0


def _status(args: argparse.Namespace) -> int:
    if _is_emulator(args.folder):
        from frog.cluster.emulator.emulated_cluster import status_text as emulator_text

        print(emulator_text(args.folder))
        return 0
    from frog.cluster.slurm.real_cluster import status_text

    print(status_text(args.folder))
    return 0


def _down(args: argparse.Namespace) -> int:
    if _is_emulator(args.folder):
        from frog.cluster.emulator import emulated_cluster as emulator

        emulator.down(args.folder)
    else:
        from frog.cluster.slurm import real_cluster as cluster

        cluster.down(args.folder, keep_logs=args.keep_logs)
    print(f"the cluster in {args.folder}/ is down")
    return 0


def _env(args: argparse.Namespace) -> int:
    if _is_emulator(args.folder):
        from frog.cluster.emulator.emulated_cluster import environment as emulator_environment

        variables = emulator_environment(args.folder)
    else:
        from frog.cluster.slurm.real_cluster import environment

        variables = environment(args.folder)
    if args.simulate_gpus:
        variables = {**variables, **simulated_gpus(None, variables)}
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _is_emulator(folder: Path) -> bool:
    """True if the folder's cluster is the emulator. Raises UsageError if it has none."""
    try:
        return read_cluster_file(folder, ClusterKind).kind == "emulator"
    except FileNotFoundError:
        raise UsageError(f"{folder}/: no cluster found", f"frog slurm up{_option(folder)}") from None


def _option(folder: Path) -> str:
    return "" if folder == _FOLDER else f" --folder {shlex.quote(str(folder))}"
