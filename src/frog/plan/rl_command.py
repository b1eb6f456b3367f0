"""`frog plan rl MODEL`: plan RL post-training. Imports happen when the command runs."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from frog.core.user_input import at_least
from frog.plan.model_command import (
    add_layout_arguments,
    add_target_arguments,
    options_of,
    read_constants_of,
    read_target,
)
from frog.plan.serve_command import add_server_arguments, read_server_of

if TYPE_CHECKING:
    from frog.plan.estimate.packing import Packing
    from frog.plan.rl.post_training import PostTraining


_MOST_SEQUENCES = 10**6
"""Responses of a step; above it, a typing mistake."""


def add_rl_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan rl`."""
    parser = actions.add_parser(
        "rl",
        help="plan RL post-training: a generator, a trainer, weights between them",
        description="Predict memory and step time of RL post-training (GRPO). Formulas and errors: docs/plan/kinds.md.",
    )
    add_target_arguments(parser)
    add_layout_arguments(parser)
    rollout = parser.add_argument_group("rollout")
    rollout.add_argument("--prompts", type=at_least(1), required=True, metavar="N", help="prompts in a step")
    rollout.add_argument("--samples", type=at_least(1), default=8, metavar="N", help="responses to each; default: 8")
    rollout.add_argument(
        "--prompt", type=at_least(1), default=512, metavar="N", help="tokens of a prompt; default: 512"
    )
    rollout.add_argument(
        "--response",
        required=True,
        metavar="LENGTHS",
        help="mean tokens of a response, or a file with one length on each line",
    )
    rollout.add_argument(
        "--longest", type=at_least(1), metavar="N", help="tokens of the longest response; default: twice the mean"
    )
    rollout.add_argument(
        "--pack-to",
        type=at_least(1),
        metavar="N",
        help="the trainer packs sequences into micro-batches of at most N tokens; with --pp all are padded to N",
    )
    generator = parser.add_argument_group("generator")
    generator.add_argument(
        "--generator-gpus", type=at_least(1), metavar="N", help="of all GPUs, those of the generator; default: shared"
    )
    add_server_arguments(generator, "generator-")
    generator.add_argument("--reference", choices=("yes", "no"), default="yes", help="a reference model; default: yes")
    generator.add_argument(
        "--offload",
        choices=("yes", "no"),
        default="yes",
        help="on shared GPUs, keep the trainer's states in the host's memory while generating; default: yes",
    )
    generator.add_argument(
        "--off-policy",
        action="store_true",
        help="generate for the next step while training, on GPUs of its own: one step off policy",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(handler=_rl)


def _rl(args: argparse.Namespace) -> int:
    from frog.plan.rl.rl_text import rl_json, rl_lines

    plan, notes = _plan_of(args)
    if args.json:
        print(rl_json(plan))
        return 0
    sys.stdout.write("\n".join([*rl_lines(plan, args.cluster), *(f"note: {note}" for note in notes)]) + "\n")
    return 0


def _plan_of(args: argparse.Namespace) -> tuple[PostTraining, list[str]]:
    """Return the plan of the arguments, and notes about it.

    Raises:  UsageError or ConfigError if it is impossible.
    """
    from dataclasses import replace

    from frog.core.errors import UsageError
    from frog.plan.estimate.packing import refuse_packing
    from frog.plan.estimate.requests import request_run
    from frog.plan.model_command import refuse_beyond
    from frog.plan.rl.post_training import PostTraining

    if args.seq_len is not None or args.tokens is not None:
        raise UsageError("--seq-len and --tokens follow from --prompt, --response and --prompts", "leave them out")
    named, cluster, num_gpus = read_target(args)
    if named.run is not None:
        raise UsageError(f"{args.model} is a run file, and frog train has no RL", "name a config.json")
    generating = args.generator_gpus or 0
    if generating >= num_gpus:
        raise UsageError(
            f"--generator-gpus {generating}: of {num_gpus} GPUs none is left to train", "fewer, or more --nodes"
        )
    if args.off_policy and not generating:
        raise UsageError(
            "--off-policy: generator and trainer share their GPUs, one after the other", "--generator-gpus N"
        )
    if (generating or num_gpus) % args.generator_tp:
        raise UsageError(f"--generator-tp {args.generator_tp} does not divide {generating or num_gpus} GPUs")
    lengths = _response_lengths(args)
    sequences, mean = args.prompts * args.samples, round(sum(lengths) / len(lengths))
    if sequences > _MOST_SEQUENCES:
        raise UsageError(
            f"{sequences:,} responses in a step: at most {_MOST_SEQUENCES:,}", "fewer --prompts or --samples"
        )
    options = {"global_batch": str(sequences), **options_of(args), "seq_len": str(_even(args.prompt + mean, args.tp))}
    if sequences % int(options["global_batch"]):
        raise UsageError(
            f"--global-batch {options['global_batch']} does not divide {args.prompts} prompts x {args.samples} samples"
        )
    update = int(options["global_batch"])
    packing = None
    if args.pack_to is not None:
        packing = _packing(args, lengths)
        splits = (args.tp or 1) * (args.cp or 1) * (args.pp or 1)
        dp = max(1, (num_gpus - generating) // splits)
        options |= packed_options(packing, update, dp, args.tp or 1, args.pp or 1)
    run = request_run(named, options, cluster, num_gpus - generating)
    run = replace(run, constants=read_constants_of(args))
    if packing is not None:
        refuse_packing(run.layout, "--pack-to")
        run = replace(run, model=packing.model(run.model))
    server = read_server_of(args, named.model, cluster, "generator_")
    longest = args.prompt + max(lengths)
    if named.most_positions and longest > named.most_positions:
        raise UsageError(
            f"the longest response ends at {longest} tokens, the model has {named.most_positions} positions"
        )
    plan = PostTraining(
        run,
        server,
        generating,
        args.prompts,
        args.samples,
        args.prompt,
        lengths,
        args.reference == "yes",
        args.offload == "yes",
        args.off_policy,
        args.gpu_memory_utilization,
        update,
    )
    return plan, [*named.notes, *refuse_beyond(run, args.anyway)]


def _packing(args: argparse.Namespace, lengths: tuple[int, ...]) -> Packing:
    """Return the packs of prompts with their responses.

    Raises:  UsageError if one is longer than a pack, or if the micro-batch has several packs.
    """
    from frog.core.errors import UsageError
    from frog.plan.estimate.packing import Packing

    if args.prompt + max(lengths) > args.pack_to:
        raise UsageError(f"--pack-to {args.pack_to}: the longest sequence has {args.prompt + max(lengths)} tokens")
    if args.micro_batch not in (None, 1):
        raise UsageError(f"--micro-batch {args.micro_batch} with --pack-to: a micro-batch is one pack")
    return Packing(tuple(args.prompt + length for length in lengths), args.pack_to)


def packed_options(packing: Packing, update: int, dp: int, tp: int, pp: int) -> dict[str, str]:
    """Return the options of an optimizer step on packs of `update` sequences: as many for each data-parallel rank.

    A pipeline passes activations of one size, so all its packs have the length of the longest.
    """
    packs = -(-update // packing.documents_per_sequence)
    tokens = packing.seq_len if pp > 1 else packing.fullness * packing.seq_len
    return {
        "seq_len": str(_even(round(tokens), tp)),
        "global_batch": str(dp * math.ceil(packs / dp)),
        "micro_batch": "1",
    }


def _response_lengths(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the lengths of responses: those of a file, or a distribution with the mean and the longest.

    Raises:  UsageError if the longest is below the mean, or stated next to a file.
    """
    from frog.core.errors import UsageError
    from frog.plan.estimate.packing import read_lengths
    from frog.plan.rl.post_training import quantile_lengths

    lengths = read_lengths(args.response, "--response")
    if not args.response.isdecimal():
        if args.longest is not None:
            raise UsageError(
                f"--longest {args.longest}: {args.response} has the length of each response", "leave it out"
            )
        return lengths
    longest = args.longest or 2 * lengths[0]
    if longest < lengths[0]:
        raise UsageError(f"--longest {longest}: below the mean of {lengths[0]} tokens")
    return quantile_lengths(lengths[0], longest)


def _even(tokens: int, tp: int | None) -> int:
    """Return a length that sequence parallelism can split."""
    split = tp or 1
    return -(-tokens // split) * split
