"""`frog plan MODEL`: predict one run on a cluster. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.user_input import at_least, between
from frog.plan.calibrate_command import PROFILE

if TYPE_CHECKING:
    from frog.launch.nodes import Nodes
    from frog.plan.estimate.adapters import Adapters
    from frog.plan.estimate.constants import Constants
    from frog.plan.estimate.hardware import Cluster
    from frog.plan.estimate.packing import Packing
    from frog.plan.estimate.rows import PlannedRun
    from frog.plan.estimate.sources import NamedModel

_NUMBERS = {
    "seq_len": "tokens in a sequence",
    "global_batch": "sequences in a step; default: about 4 M tokens",
    "micro_batch": "sequences of a rank in one forward pass",
    "tp": "ranks of tensor parallelism",
    "pp": "ranks of pipeline parallelism",
    "cp": "ranks of context parallelism",
    "ep": "ranks of expert parallelism",
    "expert_tp": "ranks that split each expert; default: as many as tp without ep or in Megatron-Core, else 1",
    "virtual_stages": "chunks of each pipeline rank",
    "recompute_layers": "with --recompute full, layers of each chunk that are computed again, as in Megatron",
    "zero_group": "ranks that split the states; default: all data-parallel ranks",
}
_CHOICES = {
    "schedule": ("gpipe", "1f1b", "interleaved", "zero_bubble"),
    "zero": ("0", "1", "2", "3"),
    "recompute": ("none", "selective", "alternate", "full"),
    "recompute_method": ("block", "uniform"),
    "reduce_dtype": ("bf16", "fp32"),
    "precision": ("bf16", "fp16", "fp8", "fp8_rowwise", "mxfp8", "nvfp4"),
}
_TEXTS = ("seq_parallel", "overlap_moe", "capacity_factor", "imbalance", "offload_optimizer", "software", "year")
COLUMNS = (*_NUMBERS, *_CHOICES, *_TEXTS)
"""Options with the names of a table's columns."""


def add_model_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan MODEL`."""
    parser = actions.add_parser(
        "MODEL",
        help="predict memory, time and cost of one run: frog plan config.json --cluster h100x8",
        description="Predict memory, time and cost of one run. Runs nothing. Formulas and errors: docs/plan/plan.md.",
        usage="frog plan MODEL [--cluster NAME] [--nodes N] [options]",
    )
    add_target_arguments(parser, default_cluster=True)
    add_layout_arguments(parser)
    add_tuning_arguments(parser)
    parser.add_argument(
        "--compare", metavar="RUN", help="a finished run of the run file: print its phases next to the prediction"
    )
    parser.add_argument(
        "--network",
        metavar="LINK",
        help="a simulated slow network on this machine, as frog run has it with --nodes 2x1",
    )
    parser.add_argument("--explain", action="store_true", help="print each formula with its values")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(handler=_plan)


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the degrees of parallelism and what belongs to them."""
    layout = parser.add_argument_group("layout, as in the tables of docs/plan/plan.md; default: the run file's")
    for name, about in _NUMBERS.items():
        if name not in ("seq_len", "global_batch"):
            layout.add_argument(_option(name), type=at_least(1), metavar="N", help=about)
    for name, choices in _CHOICES.items():
        if name != "precision":
            layout.add_argument(_option(name), choices=choices)
    layout.add_argument(
        "--offload-optimizer",
        type=between(0, 1),
        metavar="X",
        help="fraction of the optimizer that is in the host's memory and runs there (Megatron, DeepSpeed)",
    )
    layout.add_argument("--seq-parallel", choices=("yes", "no"), help="split the norms' inputs over tp")


def add_tuning_arguments(parser: argparse.ArgumentParser) -> None:
    """Add fine-tuning: adapters, with the names of PEFT and bitsandbytes, and documents of different lengths."""
    tuning = parser.add_argument_group("fine-tuning (docs/plan/kinds.md)")
    tuning.add_argument("--lora-r", type=at_least(1), metavar="N", help="train LoRA adapters of this rank alone")
    tuning.add_argument(
        "--lora-targets", metavar="NAMES", help="matrices with adapters, like q_proj,v_proj; default: all-linear"
    )
    tuning.add_argument("--quantize", choices=("nf4",), help="frozen matrices in 4 bits: QLoRA, double quantization")
    tuning.add_argument(
        "--packing",
        metavar="LENGTHS",
        help="pack documents into sequences: the tokens of each, or a file with one length on each line",
    )


def read_adapters(args: argparse.Namespace, named: NamedModel) -> Adapters | None:
    """Return the adapters of the arguments; None: all parameters are trained.

    Raises:  UsageError if options for adapters come without a rank, or with a run file.
    """
    from frog.core.errors import UsageError
    from frog.plan.estimate.adapters import ALL, Adapters, parse_targets
    from frog.plan.estimate.architectures import text_of

    if args.lora_r is None:
        if args.lora_targets is not None:
            raise UsageError("--lora-targets without --lora-r: no adapters", "add --lora-r 16")
        if args.quantize is not None:
            raise UsageError(
                f"--quantize {args.quantize} without --lora-r: weights in 4 bits cannot be trained", "add --lora-r 16"
            )
        return None
    if named.run is not None:
        raise UsageError(
            f"--lora-r: {args.model} is a run file, which trains all parameters; frog finetune --lora is not planned",
            "name a config.json",
        )
    if (args.software or "").lower() in ("frog", "hai-llm"):
        raise UsageError(
            f"--lora-r: adapters with {args.software} are not planned", "--software trainer, or megatron-bridge"
        )
    kind = "" if named.config is None else str(text_of(named.config).get("model_type", ""))
    return Adapters(args.lora_r, parse_targets(args.lora_targets or ALL), kind, args.quantize == "nf4")


def add_target_arguments(parser: argparse.ArgumentParser, *, default_cluster: bool = False) -> None:
    """Add the model, the cluster and the batch."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run file (.toml), a config.json of Hugging Face transformers, or module:function",
    )
    parser.add_argument(
        "--cluster",
        required=not default_cluster,
        metavar="NAME",
        help="such as h100x8, or your own file PATH.toml" + f"; default: {PROFILE}, if it exists" * default_cluster,
    )
    parser.add_argument(
        "--nodes",
        type=_nodes,
        metavar="N",
        help="number of nodes; default: 1; on a measured machine also 2x4, as frog run",
    )
    parser.add_argument(
        "--gpus", "--nproc", type=at_least(1), metavar="N", help="number of GPUs, or of ranks, instead of --nodes"
    )
    parser.add_argument("--tokens", type=between(1, 1e18), metavar="N", help="tokens of the whole training, like 300e9")
    parser.add_argument("--price", metavar="PRICE", help='price of one GPU, like "2.50 USD/h"; default: the profile\'s')
    for name in ("seq_len", "global_batch"):
        parser.add_argument(_option(name), type=at_least(1), metavar="N", help=_NUMBERS[name])
    parser.add_argument(
        "--precision", choices=_CHOICES["precision"], help="number format of large products; default: bf16"
    )
    parser.add_argument(
        "--software",
        metavar="NAME",
        help="megatron, megatron-bridge, torchtitan, deepspeed, trainer, accelerate, frog, hai-llm, or a table's name",
    )
    parser.add_argument(
        "--year", type=at_least(1), metavar="N", help="year of the program: decides which attention it has"
    )
    parser.add_argument(
        "--overlap-moe",
        choices=("yes", "no"),
        help="the experts' all-to-all runs next to another micro-batch's pass, as in DualPipe and Megatron-Core",
    )
    parser.add_argument(
        "--capacity-factor",
        type=between(0.01, 100),
        metavar="X",
        help="experts drop tokens beyond X times the mean, and fill up to it; default: none is dropped",
    )
    parser.add_argument(
        "--imbalance",
        type=between(1, 1000),
        metavar="X",
        help="rows of the rank with most of the experts' tokens, of the mean; default: that of random choices",
    )
    add_constants_argument(parser)
    parser.add_argument("--anyway", action="store_true", help="predict beyond the size of all measured runs")


def add_constants_argument(parser: argparse.ArgumentParser) -> None:
    """Add the file of constants that replace Frog's own."""
    parser.add_argument("--constants", type=Path, metavar="FILE", help="constants that frog plan fit wrote")


def read_constants_of(args: argparse.Namespace) -> Constants:
    """Return the constants of the arguments, by default Frog's own.

    Raises:  ConfigError if their file is missing or wrong.
    """
    from frog.plan.estimate.constants import FITTED
    from frog.plan.estimate.fit import read_constants

    return FITTED if args.constants is None else read_constants(args.constants)


def _nodes(text: str) -> int | Nodes:
    """Return a number of nodes, or for NODESxRANKS simulated nodes.

    Raises:  ValueError or argparse.ArgumentTypeError for anything else.
    """
    from frog.core.errors import UsageError
    from frog.launch.nodes import parse_nodes

    if "x" not in text and ":" not in text:
        return at_least(1)(text)
    try:
        nodes = parse_nodes(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.what) from None
    if nodes.elastic:
        raise argparse.ArgumentTypeError(f"{text}: a plan is for a fixed number of nodes")
    return nodes


_nodes.__name__ = "int"  # argparse reports `invalid int value: 'x'`


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_target(args: argparse.Namespace) -> tuple[NamedModel, Cluster, int]:
    """Return the model, the cluster and the number of GPUs of the arguments.

    Raises:  UsageError or ConfigError if one of them is wrong.
    """
    from frog.core.errors import UsageError
    from frog.plan.estimate.hardware import find_cluster
    from frog.plan.estimate.sources import read_named_model
    from frog.plan.quantities import parse_price

    if args.nodes is not None and args.gpus is not None:
        raise UsageError("--nodes and --gpus: both state the number of GPUs", "remove one")
    cluster = find_cluster(args.cluster)
    if args.price is not None:
        cluster = replace(cluster, price=parse_price(args.price, "--price"))
    nodes = 1 if args.nodes is None else args.nodes
    if isinstance(nodes, int):
        num_gpus = args.gpus or nodes * cluster.gpus_per_node
    elif cluster.machine is None:
        raise UsageError(
            f"--nodes {nodes.most}x{nodes.ranks}: {args.cluster} states the GPUs of a node: {cluster.gpus_per_node}",
            f"--nodes {nodes.most}; ranks per node are for simulated nodes on a measured machine",
        )
    else:
        num_gpus = nodes.most * nodes.ranks
    return read_named_model(args.model), cluster, num_gpus


def options_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the given options by the names of a table's columns."""
    return {name: str(value) for name in COLUMNS if (value := getattr(args, name, None)) is not None}


def _tuning_of(args: argparse.Namespace) -> dict[str, str]:
    names = ("lora_r", "lora_targets", "quantize", "packing")
    return {name: str(value) for name in names if (value := getattr(args, name, None)) is not None}


def refuse_beyond(run: PlannedRun, anyway: bool) -> list[str]:
    """Return how a run exceeds all measured ones.

    Raises:  UsageError with that, unless the user wants it anyway.
    """
    from frog.core.errors import UsageError
    from frog.plan.estimate.nearest import beyond_measured

    beyond = beyond_measured(run)
    if beyond and not anyway:
        raise UsageError(f"beyond the measured runs: {'; '.join(beyond)}", "--anyway predicts it without that support")
    return beyond


def read_packing(args: argparse.Namespace, named: NamedModel) -> tuple[Packing, NamedModel]:
    """Return the documents of the arguments, and the model with attention inside of them."""
    from frog.plan.estimate.packing import Packing, read_lengths
    from frog.plan.estimate.requests import usual_sequence

    packing = Packing(read_lengths(args.packing, "--packing"), args.seq_len or usual_sequence(named))
    return packing, replace(named, model=packing.model(named.model))


def _plan(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.plan.estimate.packing import refuse_packing, without_packing
    from frog.plan.estimate.requests import request_run
    from frog.plan.plan_text import plan_json, plan_lines

    _choose_cluster(args)
    named, cluster, num_gpus = read_target(args)
    if args.network is not None and cluster.machine is None:
        raise UsageError(
            f"--network: {args.cluster} is not a measured machine; its own file states its network",
            "frog plan calibrate measures this machine",
        )
    if cluster.machine is not None or args.compare is not None:
        sys.stdout.write(_plan_here(args, named, cluster, num_gpus))
        return 0
    packed = None if args.packing is None else read_packing(args, named)
    adapters, own = read_adapters(args, named), named if packed is None else packed[1]
    run = replace(request_run(own, options_of(args), cluster, num_gpus, adapters), constants=read_constants_of(args))
    beyond = refuse_beyond(run, args.anyway)
    tokens = args.tokens
    if tokens is None and named.run is not None:
        tokens = named.run.train.steps * run.layout.global_batch * run.layout.seq_len
    packing = None
    if packed is not None:
        refuse_packing(run.layout)
        packing = packed[0], without_packing(run, packed[0], named.model)
        tokens = None if tokens is None else tokens / packed[0].fullness
    if args.json:
        print(plan_json(run, tokens, packing))
        return 0
    lines = plan_lines(run, args.cluster, tokens, [*named.notes, *beyond], explain=args.explain, packing=packing)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _choose_cluster(args: argparse.Namespace) -> None:
    """Choose this folder's profile of the machine if no cluster is named.

    Raises:  UsageError if there is none.
    """
    from frog.core.errors import UsageError

    if args.cluster is None and not PROFILE.is_file():
        raise UsageError(
            f"no --cluster, and no {PROFILE} in this folder",
            "name a cluster, such as --cluster h100x8; or measure this machine: frog plan calibrate",
        )
    args.cluster = args.cluster or str(PROFILE)


def _plan_here(args: argparse.Namespace, named: NamedModel, cluster: Cluster, num_ranks: int) -> str:
    """Return the plan of a run on a measured machine, or its comparison with a run.

    Raises:  UsageError for options that only the model of GPUs has.
    """
    from frog.core.errors import UsageError
    from frog.plan.machine_command import compare_with_run, plan_on_machine, read_network

    if cluster.machine is None:
        raise UsageError(
            f"--compare: {args.cluster} was not measured on a machine", "frog plan calibrate measures this one"
        )
    if named.run is None or (given := {**options_of(args), **_tuning_of(args)}):
        said = "the model is not a run file" if named.run is None else f"--{next(iter(given)).replace('_', '-')}"
        raise UsageError(f"{args.cluster} is a measured machine: {said}", "name a run file, and change the run there")
    if args.compare is not None:
        return compare_with_run(args.compare, cluster)
    network = None if args.network is None else read_network(args.network, args.nodes)
    return plan_on_machine(named.run, cluster, num_ranks, network, as_json=args.json)
