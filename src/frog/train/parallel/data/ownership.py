"""Which rank updates which elements, as a strategy of one's own states it, and whether that can be right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from frog.core.schema import shortened
from frog.core.user_input import did_you_mean


class Range(NamedTuple):
    """The elements [start, end) of a flattened parameter."""

    name: str
    start: int
    end: int


class Owned(NamedTuple):
    """What `owned` returns for each tensor that a rank updates."""

    name: str
    start: int
    tensor: nn.Parameter

    @property
    def range(self) -> Range:
        return Range(self.name, self.start, self.start + self.tensor.numel())


class WrongOwnership(ValueError):
    """The tensors that ranks own break a rule."""


def read_owned(
    returned: Any, names: Collection[str], device: torch.device, unowned: Mapping[str, str] | None = None
) -> list[Owned]:
    """Check what one rank's `owned` returned. Raises WrongOwnership.

    names: the trained parameters.
    unowned: the model's other names of parameters, each with the reason why no rank owns it.
    """
    if not isinstance(returned, list | tuple):
        raise WrongOwnership(f"it returns {_kind(returned)}: must be a list of (name, start, tensor)")
    return [_read_one(f"item {number}", item, names, device, unowned or {}) for number, item in enumerate(returned)]


def unowned_names(model: nn.Module) -> dict[str, str]:
    """Return the names of frozen parameters and the second names of shared ones, each with the rule for it."""
    first: dict[nn.Parameter, str] = {}
    reasons = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            reasons[name] = "is frozen: leave it out"
        elif first.setdefault(parameter, name) != name:
            reasons[name] = f"is the same parameter as {first[parameter]}: list it once, by that name"
    return reasons


def _read_one(where: str, item: Any, names: Collection[str], device: torch.device, unowned: Mapping[str, str]) -> Owned:
    if not isinstance(item, list | tuple) or len(item) != 3:
        raise WrongOwnership(f"{where} is {_kind(item)}: must be (name, start, tensor)")
    name, start, tensor = item
    if isinstance(name, str) and name in unowned:
        raise WrongOwnership(f"{where}: {name!r} {unowned[name]}")
    if not isinstance(name, str) or name not in names:
        why = did_you_mean(name, names) if isinstance(name, str) else "must be a string"
        raise WrongOwnership(f"{where}: {name!r} is not a trained parameter of the model; {shortened(why, 300)}")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise WrongOwnership(f"{where}, {name}: start is {start!r}: must be the index of an element")
    if not isinstance(tensor, nn.Parameter):
        raise WrongOwnership(f"{where}, {name}: {_kind(tensor)}: the optimizer needs an nn.Parameter")
    if tensor.dtype != torch.float32 or tensor.device.type != device.type or not tensor.is_contiguous():
        what = f"{tensor.dtype} on {tensor.device}{'' if tensor.is_contiguous() else ', not contiguous'}"
        raise WrongOwnership(f"{where}, {name}: {what}: must be contiguous, torch.float32, on {device}")
    return Owned(name, start, tensor)


def find_sharing(shapes: Mapping[str, Sequence[int]], claims: Sequence[Sequence[tuple[str, int, int]] | str]) -> bool:
    """True if the ranks share the elements among them, False if each rank owns all. Raises WrongOwnership otherwise.

    shapes: those of the trained parameters.
    claims: each rank's ranges, or the reason why it has none.
    """
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    ranges_by_rank: list[list[Range]] = []
    for rank, claim in enumerate(claims):
        if isinstance(claim, str):
            raise WrongOwnership(claim)
        ranges_by_rank.append([Range(*span) for span in claim])
        for span in ranges_by_rank[-1]:
            if span.end > counts[span.name]:
                raise WrongOwnership(
                    f"rank {rank} owns {_elements(span)}, but it has only {counts[span.name]}: leave padding out"
                )
    pieces = list(_pieces(counts, ranges_by_rank))
    everyone = list(range(len(ranges_by_rank)))
    if all(owners == everyone for _, owners in pieces):
        return False
    for span, owners in pieces:
        if not owners:
            raise WrongOwnership(f"no rank owns {_elements(span)} of {counts[span.name]}")
    for span, owners in pieces:
        if len(owners) > 1 and owners != everyone:
            others = [rank for rank in everyone if rank not in owners]
            but = f", but {_ranks(others)} {'do' if len(others) > 1 else 'does'} not" if others else ""
            raise WrongOwnership(f"{_ranks(owners)} own{'' if len(set(owners)) > 1 else 's'} {_elements(span)}{but}")
    for span, owners in pieces:
        if len(owners) > 1:
            alone, owner = next((span, owners[0]) for span, owners in pieces if len(owners) == 1)
            raise WrongOwnership(f"every rank owns {_elements(span)}, but only rank {owner} owns {_elements(alone)}")
    return True


def _pieces(counts: Mapping[str, int], ranges_by_rank: Sequence[Sequence[Range]]) -> Iterator[tuple[Range, list[int]]]:
    """Cut each parameter where an owner changes; yield each piece with its owners, a rank twice if it owns it twice."""
    by_name: dict[str, list[tuple[int, Range]]] = {name: [] for name in counts}
    for rank, ranges in enumerate(ranges_by_rank):
        for span in ranges:
            by_name[span.name].append((rank, span))
    for name, count in counts.items():
        claims = by_name[name]
        cuts = sorted({0, count, *(cut for _, span in claims for cut in (span.start, span.end))})
        for start, end in itertools.pairwise(cuts):
            owners = [rank for rank, span in claims if span.start <= start and end <= span.end]
            yield Range(name, start, end), owners


def _elements(one: Range) -> str:
    return f"{one.name}, elements {one.start} to {one.end - 1}"


def _ranks(ranks: Sequence[int]) -> str:
    named = sorted(set(ranks))
    twice = " twice" if len(named) < len(ranks) else ""
    if len(named) == 1:
        return f"rank {named[0]}{twice}"
    return f"ranks {', '.join(map(str, named[:-1]))} and {named[-1]}{twice}"


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"
