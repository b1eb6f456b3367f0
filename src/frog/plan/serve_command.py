"""`frog plan serve MODEL`: serve a model on GPUs. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from frog.core.user_input import at_least, between
from frog.plan.model_command import add_constants_argument, read_constants_of

if TYPE_CHECKING:
    from frog.plan.estimate.hardware import Cluster
    from frog.plan.model import PlannedModel
    from frog.plan.serve.server import Server


def add_serve_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan serve`."""
    parser = actions.add_parser(
        "serve",
        help="plan serving a model: KV cache, the largest batch, tokens per second",
        description="Predict memory, latency and tokens per second of serving a model. Formulas and errors: "
        "docs/plan/kinds.md.",
    )
    parser.add_argument("model", metavar="MODEL", help="a config.json of Hugging Face transformers, or module:function")
    parser.add_argument("--cluster", required=True, metavar="NAME", help="such as h100x8, or your own file PATH.toml")
    parser.add_argument("--gpus", type=at_least(1), metavar="N", help="GPUs of all replicas; default: one replica")
    parser.add_argument("--prompt", type=at_least(1), required=True, metavar="N", help="tokens of a prompt")
    parser.add_argument("--generate", type=at_least(1), required=True, metavar="N", help="tokens of an answer")
    parser.add_argument(
        "--batch", type=at_least(1), metavar="N", help="sequences of a replica at a time; default: all that fit"
    )
    add_server_arguments(parser)
    parser.add_argument("--price", metavar="PRICE", help='price of one GPU, like "2.50 USD/h"; default: the profile\'s')
    add_constants_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(handler=_serve)


def add_server_arguments(parser: argparse._ActionsContainer, prefix: str = "") -> None:
    """Add what the replicas of a server have in common, with the names of vLLM's options."""
    parser.add_argument(
        f"--{prefix}tp", type=at_least(1), default=1, metavar="N", help="GPUs of a replica, by tensor parallelism"
    )
    parser.add_argument(
        f"--{prefix}precision",
        choices=("bf16", "fp16", "fp8"),
        default="bf16",
        help="weights and products; default: bf16",
    )
    parser.add_argument(
        "--kv-cache-dtype", choices=("auto", "fp8"), default="auto", help="numbers of the KV cache; default: 16 bits"
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=between(0.05, 0.99),
        default=0.9,
        metavar="SHARE",
        help="share of a GPU's memory that the server uses; default: 0.9",
    )


def read_server_of(args: argparse.Namespace, model: PlannedModel, cluster: Cluster, prefix: str = "") -> Server:
    """Return one replica, from the arguments of `add_server_arguments()` with the same prefix.

    Raises:  UsageError if the replica is impossible.
    """
    from frog.plan.serve.server import Server
    from frog.plan.serve.serving import check_server

    tp, precision = getattr(args, f"{prefix}tp"), getattr(args, f"{prefix}precision")
    cache_bytes = 1 if args.kv_cache_dtype == "fp8" else 2
    server = Server(model, cluster, tp, precision, cache_bytes, read_constants_of(args))
    check_server(server)
    return server


def _serve(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from frog.core.errors import UsageError
    from frog.plan.estimate.hardware import find_cluster
    from frog.plan.estimate.sources import read_named_model
    from frog.plan.quantities import parse_price
    from frog.plan.serve.serve_text import serving_json, serving_lines
    from frog.plan.serve.serving import Serving

    cluster = find_cluster(args.cluster)
    if args.price is not None:
        cluster = replace(cluster, price=parse_price(args.price, "--price"))
    named = read_named_model(args.model)
    server = read_server_of(args, named.model, cluster)
    num_gpus = args.gpus or args.tp
    if num_gpus % args.tp:
        raise UsageError(f"--gpus {num_gpus} is no multiple of --tp {args.tp}, the GPUs of a replica")
    length = args.prompt + args.generate
    if named.most_positions and length > named.most_positions:
        raise UsageError(
            f"--prompt {args.prompt} and --generate {args.generate}: {length} tokens, the model has "
            f"{named.most_positions} positions",
            "shorter ones, or a config.json with larger max_position_embeddings",
        )
    plan = Serving(
        server, args.batch or 1, args.prompt, args.generate, num_gpus // args.tp, args.gpu_memory_utilization
    )
    if args.batch is None and plan.largest_batch:
        plan = replace(plan, batch=plan.largest_batch)
    if args.json:
        print(serving_json(plan))
        return 0
    sys.stdout.write("\n".join([*serving_lines(plan, args.cluster), *(f"note: {note}" for note in named.notes)]) + "\n")
    return 0
