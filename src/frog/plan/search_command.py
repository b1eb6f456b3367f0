"""`frog plan search MODEL`: the best layouts of a model on a cluster. Imports happen when the command runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.plan.model_command import (
    add_target_arguments,
    add_tuning_arguments,
    options_of,
    read_adapters,
    read_constants_of,
    read_packing,
    read_target,
    refuse_beyond,
)

if TYPE_CHECKING:
    from frog.plan.estimate.adapters import Adapters
    from frog.plan.estimate.sources import NamedModel
    from frog.plan.layout import Layout
    from frog.plan.model import PlannedModel
    from frog.plan.quantities import Price
    from frog.plan.search.best import Candidate, SearchResult

_GIB = 2**30
_FEWER = (1, 2, 4, 8)
"""The front has layouts on all nodes, and on these fractions of them."""
_DEFAULT_STEPS = 1000
_LEAST_GAIN = 0.005


def add_search_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan search`."""
    parser = actions.add_parser(
        "search",
        help="find the best layouts of a model on a cluster, and write its run file",
        description="Find the fastest layouts of a model on a cluster, by formula, and what would make them faster.",
    )
    add_target_arguments(parser)
    add_tuning_arguments(parser)
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="write what the program reads, Frog's run file, a profile for frog submit, and a page",
    )
    parser.set_defaults(handler=_search)


def _search(args: argparse.Namespace) -> int:
    from frog.core.errors import ConfigError, UsageError
    from frog.core.units import format_count
    from frog.plan.estimate.adapters import adapter_words
    from frog.plan.estimate.budget import num_steps
    from frog.plan.estimate.requests import base_layout, zeros_of
    from frog.plan.estimate.rows import precision_problem
    from frog.plan.memory import USABLE
    from frog.plan.search.best import search
    from frog.plan.search.files import check_folder, write_files
    from frog.plan.search.grid import AXES, CHOICES
    from frog.plan.search.program_files import axes_of

    if args.to is not None:
        check_folder(args.to)
    named, cluster, num_gpus = read_target(args)
    adapters, model, tokens = read_adapters(args, named), named.model, args.tokens
    base, software = base_layout(named, options_of(args), adapters)
    if problem := precision_problem(base, cluster):
        raise ConfigError(problem, "--precision bf16")
    zeros = zeros_of(software, adapters)
    axes: tuple[str, ...] = CHOICES
    if adapters is not None or args.packing is not None:
        model, adapters, axes, tokens = _tuned(args, named, base, software, adapters)
    counts = [num_gpus // part for part in _FEWER if num_gpus % (part * cluster.gpus_per_node) == 0] or [num_gpus]
    constants = read_constants_of(args)
    result = search(model, cluster, counts, base, zeros, constants, axes, adapters)
    batch = f"a step of {base.global_batch} x {base.seq_len} tokens"
    if not result.num_layouts:
        raise UsageError(
            f"no layout of {num_gpus} GPUs divides a global batch of {base.global_batch} among its data-parallel ranks",
            "a --global-batch with more divisors in common with the number of GPUs",
        )
    if not result.best:
        raise UsageError(
            f"none of {result.num_layouts:,} layouts fits in {100 * USABLE:.0f} % of "
            f"{cluster.gpu.memory / _GIB:.1f} GiB on {num_gpus} GPUs, with {batch}",
            "more --nodes, another --global-batch, or another cluster",
        )
    notes = refuse_beyond(result.best[0].run, args.anyway)
    written = []
    if args.to is not None:
        # The files come first: a closed pipe, as of `| head`, ends the command at a line that it prints.
        steps = _DEFAULT_STEPS if tokens is None else num_steps(base, tokens)
        for_frog, stated, of_program = None, axes_of(software), None
        if adapters is None and args.packing is None:
            own, _ = base_layout(named, {**options_of(args), "software": "frog", "overlap_moe": "no"})
            for_frog = search(model, cluster, [num_gpus], own, constants=constants, axes=AXES)
        if stated is not None:
            is_searched = set(axes) <= set(stated)
            only = result if is_searched else search(model, cluster, [num_gpus], base, zeros, constants, stated)
            of_program = (software, only)
        written = write_files(args.to, result, for_frog, of_program, named.config, args.cluster, steps)
    print(f"{format_count(named.model.num_parameters())} parameters, {batch}, {base.precision}, {software}")
    if adapters is not None:
        print(adapter_words(adapters, model))
    gpus = f"{', '.join(map(str, counts))} {cluster.gpu.name}"
    print(f"{result.num_layouts:,} layouts on {gpus}; {result.num_fitting:,} fit")
    for line in _lines(result, tokens, zeros, axes, cluster.price):
        print(line)
    for note in notes:
        print(f"note: {note}")
    if written:
        print("\n" + "\n".join(written))
    return 0


def _tuned(
    args: argparse.Namespace, named: NamedModel, base: Layout, software: str, adapters: Adapters | None
) -> tuple[PlannedModel, Adapters | None, tuple[str, ...], float | None]:
    """Return the model with documents, the adapters of the program, the axes next to dp, and tokens with padding.

    The axes are those of the program's options, which packed documents and quantized matrices limit.

    Raises:  ConfigError if adapters or packing are impossible.
    """
    from frog.core.errors import ConfigError
    from frog.plan.estimate.packing import refuse_packing
    from frog.plan.search.grid import CHOICES
    from frog.plan.search.program_files import axes_of

    model, stated, tokens = named.model, axes_of(software), args.tokens
    axes = CHOICES if stated is None else stated
    if adapters is not None:
        if problems := adapters.problems(model, base):
            raise ConfigError("\n".join(problems))
        adapters = adapters.of_program(software)
        axes = () if adapters.quantized else axes
    if args.packing is not None:
        refuse_packing(base)
        packing, packed = read_packing(args, named)
        model, axes = packed.model, tuple(axis for axis in axes if axis != "cp")
        tokens = tokens and tokens / packing.fullness
    return model, adapters, axes, tokens


def _lines(
    result: SearchResult, tokens: float | None, zeros: Sequence[int], axes: Sequence[str], price: Price | None
) -> Iterator[str]:
    from frog.plan.search.best import what_binds

    yield f"\nthe fastest layout of each mesh\n{_header(tokens, price)}"
    yield from (_row(candidate, tokens, price) for candidate in result.best)
    yield f"\nnot beaten in time, memory and GPU-hours\n{_header(tokens, price)}"
    yield from (_row(candidate, tokens, price) for candidate in result.front)
    if price is not None and tokens is None:
        yield f"\nwith --tokens, the table also has what the training costs, in {price.currency}"
    yield "\nhow much faster the first layout would be with twice"
    for what, gain in what_binds(result, zeros, axes).items():
        if gain > _LEAST_GAIN:
            yield f"  {what:<30} {100 * gain:>5.1f} %"


def _header(tokens: float | None, price: Price | None) -> str:
    money = f"{price.currency:>12}" if tokens and price is not None else ""
    return f"   step s     GiB   MFU %    GPUs{'    days' if tokens else ''}{money}  layout"


def _row(candidate: Candidate, tokens: float | None, price: Price | None) -> str:
    from frog.plan.estimate.budget import num_steps
    from frog.plan.plan_text import layout_words

    layout, of_training = candidate.run.layout, ""
    if tokens:
        steps = num_steps(layout, tokens)
        money = f"{price.amount * steps * candidate.gpu_s / 3600:>12,.0f}" if price is not None else ""
        of_training = f"{steps * candidate.step_s / 86400:>8.1f}{money}"
    numbers = f"{candidate.step_s:>#9.4g} {candidate.memory / _GIB:>7.1f} {100 * candidate.mfu:>7.1f}"
    return f"{numbers} {layout.num_gpus:>7}{of_training}  {layout_words(candidate.run)}"
