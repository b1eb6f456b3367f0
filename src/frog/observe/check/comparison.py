"""The records of all ranks side by side: which steps they share, and which parameters must be equal on which ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, takewhile
from typing import Any

from frog.observe.check.rank_records import Parameter, RankRecord, Step

MOST_NAMES = 4
"""Most names of parameters in a sentence."""


class NotObservable(Exception):
    """Why a rule could not be checked."""


@dataclass(frozen=True)
class Replica:
    """A parameter that several ranks hold as equal copies."""

    optimizer: int
    index: int
    """Its place in the optimizer."""
    ranks: tuple[int, ...]
    known: bool
    """True if DDP, a DTensor's placements or equal gradients say so; False if only equal weights at the start do."""


@dataclass(frozen=True)
class Moment:
    """A step that several ranks took."""

    optimizer: int
    step: int
    of: dict[int, Step]

    @property
    def is_sampled(self) -> bool:
        return all(step.gradients is not None for step in self.of.values())


class Comparison:
    """The ranks of one program."""

    def __init__(self, records: dict[int, RankRecord], earlier: dict[int, RankRecord] | None = None) -> None:
        self.records = records
        self.earlier = earlier or {}
        """The ranks of the run that saved what this one has loaded, if they were recorded."""
        self.ranks = tuple(sorted(records))
        self._known_moments: dict[int, list[Moment]] = {}
        self._known_copies: dict[tuple[int, int], set[int]] = {}

    @property
    def any(self) -> RankRecord:
        """Return the record of the first rank."""
        return self.records[self.ranks[0]]

    @cached_property
    def optimizers(self) -> list[int]:
        """Return the optimizers that some rank has stepped."""
        return sorted({number for record in self.records.values() for number in record.tables})

    def moments(self, optimizer: int) -> list[Moment]:
        """Return the steps of an optimizer that at least one rank took, in order."""
        if optimizer not in self._known_moments:
            self._known_moments[optimizer] = self._moments(optimizer)
        return self._known_moments[optimizer]

    def _moments(self, optimizer: int) -> list[Moment]:
        by_step: dict[int, dict[int, Step]] = {}
        for rank, record in self.records.items():
            for step in record.steps_of(optimizer):
                by_step.setdefault(step.step, {})[rank] = step
        moments = [Moment(optimizer, number, by_step[number]) for number in sorted(by_step)]
        return list(takewhile(self._is_same, moments))

    def _is_same(self, moment: Moment) -> bool:
        """True if the ranks had run as many backward passes: else a rank has skipped a step, and they do not belong."""
        return len({self._passes[rank][step.number] for rank, step in moment.of.items()}) == 1

    @cached_property
    def _passes(self) -> dict[int, dict[int, int]]:
        """Return how many backward passes each rank had run at each of its steps."""
        passes: dict[int, dict[int, int]] = {}
        for rank, record in self.records.items():
            counts = accumulate(len(step.backwards) for step in record.steps)
            passes[rank] = {step.number: count for step, count in zip(record.steps, counts, strict=True)}
        return passes

    def sampled(self, optimizer: int) -> list[Moment]:
        """Return the steps of which the tensors of all ranks that took them are known."""
        return [moment for moment in self.moments(optimizer) if moment.is_sampled]

    def all_sampled(self) -> Iterator[Moment]:
        """Yield the sampled steps of all optimizers."""
        for optimizer in self.optimizers:
            yield from self.sampled(optimizer)

    def require_steps(self) -> None:
        """Raise NotObservable if no optimizer of torch took a step."""
        if not any(record.steps for record in self.records.values()):
            raise NotObservable("no optimizer of torch.optim took a step")

    def require_ranks(self) -> None:
        """Raise NotObservable for a single rank."""
        if len(self.ranks) < 2:
            raise NotObservable("only one rank was recorded")

    def parameter(self, optimizer: int, index: int, rank: int | None = None) -> Parameter | None:
        """Return a parameter of an optimizer."""
        table = self.records[self.ranks[0] if rank is None else rank].tables.get(optimizer)
        return table.parameters[index] if table is not None and index < len(table.parameters) else None

    def name(self, optimizer: int, index: int, rank: int | None = None) -> str:
        """Return a parameter's name for people."""
        parameter = self.parameter(optimizer, index, rank)
        if parameter is not None and parameter.names:
            return " = ".join(parameter.names[:2])
        made = f", made at {parameter.made}" if parameter is not None and parameter.made is not None else ""
        return f"parameter {index} of the optimizer{made}"

    @cached_property
    def has_messages(self) -> bool:
        """True if ranks sent each other messages, as stages of a pipeline do."""
        return any(
            (record.end is not None and record.end.messages) or any(step.messages for step in record.steps)
            for record in self.records.values()
        )

    @cached_property
    def has_exchanges(self) -> bool:
        """True if ranks gave each other parts of their activations, as those with experts do."""
        return any(
            (record.end is not None and record.end.exchanges) or any(step.exchanges for step in record.steps)
            for record in self.records.values()
        )

    @cached_property
    def is_sharded(self) -> bool:
        """True if a wrapper keeps only a part of the weights on each rank."""
        wrappers = {module.wrapper for record in self.records.values() for module in record.modules.values()}
        return bool(wrappers & {"fsdp1", "fsdp2", "deepspeed"})

    @cached_property
    def reduces(self) -> bool:
        """True if the program called a reduction of its own."""
        return any(
            any(record.calls("all_reduce", "reduce_scatter_tensor", "reduce")) for record in self.records.values()
        )

    @cached_property
    def replicas(self) -> list[Replica]:
        """Return the parameters that must be equal on several ranks."""
        return [replica for optimizer in self.optimizers for replica in self._of_optimizer(optimizer)]

    def _of_optimizer(self, optimizer: int) -> Iterator[Replica]:
        tables = {rank: record.tables[optimizer] for rank, record in self.records.items() if optimizer in record.tables}
        length = min((len(table.parameters) for table in tables.values()), default=0)
        moments = self.sampled(optimizer)
        for index in range(length):
            parameters = {rank: table.parameters[index] for rank, table in tables.items()}
            if not _are_same(list(parameters.values())):
                continue  # each rank's optimizer holds other parameters, as ZeRO's do
            known = {_known_ranks(parameter, rank) for rank, parameter in parameters.items()}
            groups = {tuple(rank for rank in group if rank in parameters) for group in known if group is not None}
            if groups:
                yield from (Replica(optimizer, index, group, True) for group in sorted(groups) if len(group) > 1)
            elif len(parameters) == len(self.ranks) > 1 and moments and not self.has_messages:
                if not self.is_sharded:
                    yield from self._inferred(optimizer, index, parameters, moments)
                elif self._is_left_out_by_fsdp(optimizer, index, moments[0]):
                    yield Replica(optimizer, index, tuple(parameters), False)

    def _is_left_out_by_fsdp(self, optimizer: int, index: int, first: Moment) -> bool:
        """True for a tensor that begins equal on all ranks, in a model whose others FSDP2 shards over all of them.

        Experts of which each rank has its own exchange tokens.
        """
        tables = [record.tables[optimizer] for record in self.records.values()]
        sharded = [each for each in tables[0].parameters if each.mesh == list(self.ranks)]
        if self.has_exchanges or not sharded or set(first.of) != set(self.ranks):
            return False
        own = [table.parameters[index] for table in tables]
        is_plain = all(each.mesh is None and each.names and each.trained and not each.whole for each in own)
        inside = {each.module for each in sharded} & {each.module for each in own}
        return is_plain and bool(inside) and len({step.before[index] for step in first.of.values()}) == 1

    def _inferred(
        self, optimizer: int, index: int, parameters: dict[int, Parameter], moments: list[Moment]
    ) -> Iterator[Replica]:
        """Yield a parameter without a wrapper that has equal gradients in some step, or equal weights at the start."""
        first = moments[0].of
        if set(first) != set(parameters) or self._averages_weights(optimizer, index):
            return
        if any(parameter.mesh is not None for parameter in parameters.values()):
            return
        agree = any(_equal_gradients(moment, index) for moment in moments[:4])
        if agree or index in self._copies_beside_parts(optimizer, moments[0]):
            yield Replica(optimizer, index, tuple(parameters), True)
        elif len({step.before[index] for step in first.values()}) == 1 and (
            not parameters[self.ranks[0]].constant
            or self._is_norm_beside_copies(optimizer, index, moments[0])
            or self._is_whole_beside_parts(optimizer, index)
        ):
            yield Replica(optimizer, index, tuple(parameters), False)

    def _copies_beside_parts(self, optimizer: int, first: Moment) -> set[int]:
        """Return the parameters with equal weights and gradients in the first step, if others have other weights.

        Ranks whose weights differ have equal gradients somewhere only if they give each other parts of them: as those
        do that split layers, with equal losses.
        """
        key = optimizer, first.step
        if key not in self._known_copies:
            steps = list(first.of.values())
            places = range(len(steps[0].before))
            equal = [index for index in places if len({_nth(each.before, index) for each in steps}) == 1]
            left = [_gradients_after_backward(step) for step in steps]
            used = [[None if each is None else each.bits for each in step.gradients or ()] for step in steps]
            same = {
                index
                for index in equal
                if _agree([_nth(each, index) for each in left]) or _agree([_nth(each, index) for each in used])
            }
            # one alone may be a bias whose gradient does not depend on what is before it
            self._known_copies[key] = same if len(same) > 1 and len(equal) < len(places) else set()
        return self._known_copies[key]

    def _is_norm_beside_copies(self, optimizer: int, index: int, first: Moment) -> bool:
        """True for a norm as wide as a copy on all ranks, of which no rank has a part: all norms begin with ones."""
        parameter = self.parameter(optimizer, index)
        copies = [self.parameter(optimizer, other) for other in self._copies_beside_parts(optimizer, first)]
        widths = {width for copy in copies if copy is not None for width in copy.shape}
        return parameter is not None and "Norm" in parameter.owner and set(parameter.shape) <= widths

    def _is_whole_beside_parts(self, optimizer: int, index: int) -> bool:
        """True for a tensor as long as the whole of a dimension that a mesh divides: it is not a part of it."""
        parameter, table = self.parameter(optimizer, index), self.any.tables.get(optimizer)
        if parameter is None or table is None:
            return False
        divided = {
            each.shape[int(placement[2:-1])]
            for each in table.parameters
            for placement in each.placements or ()
            if placement.startswith("S(") and placement[2:-1].isdigit()
        }
        return bool(divided & set(parameter.shape))

    def _averages_weights(self, optimizer: int, index: int) -> bool:
        """True if something else than an optimizer makes different weights equal again, as local SGD does.

        Federated averaging makes a new optimizer in each round.
        """
        parameter = self.parameter(optimizer, index)
        places = [
            (moment, place)
            for number in self.optimizers
            for place in self._places(number, parameter.names if parameter is not None else [], (optimizer, index))
            for moment in self.sampled(number)
        ]
        for (before, old), (now, new) in pairwise(places):
            follows = now.optimizer != before.optimizer or now.step == before.step + 1
            if not follows or len(now.of) < len(self.ranks) or len(before.of) < len(self.ranks):
                continue
            if (
                len({step.weight_bits(old) for step in before.of.values()}) > 1
                and len({step.before[new] for step in now.of.values()}) == 1
            ):
                return True
        return False

    def _places(self, optimizer: int, names: list[str], own: tuple[int, int]) -> list[int]:
        """Return the places in an optimizer of the parameter with some names."""
        table = self.any.tables.get(optimizer)
        parameters = table.parameters if table is not None and names else []
        return [place for place, each in enumerate(parameters) if each.names == names or (optimizer, place) == own]

    def share_layers(self, one: int, other: int) -> bool:
        """True if a mesh, or its last dimension, divides a parameter among ranks with both, and FSDP2 does not."""
        if self.is_sharded or any(module.shards for module in self.records[one].modules.values()):
            return False
        for table in self.records[one].tables.values():
            for parameter in table.parameters:
                if parameter.mesh is None or not parameter.placements or not parameter.placements[-1].startswith("S"):
                    continue
                coordinates = dict(_coordinates(parameter.mesh, ()))
                mine, theirs = coordinates.get(one), coordinates.get(other)
                if mine is not None and theirs is not None and mine != theirs and mine[:-1] == theirs[:-1]:
                    return True
        return False

    def in_data_group(self, one: int, other: int) -> bool | None:
        """True if two ranks train replicas of one model on samples of their own; None if unknown."""
        if any({one, other} <= set(replica.ranks) and self.is_ddp(replica) for replica in self.replicas):
            return True
        wrappers = {module.wrapper for module in self.records[one].modules.values()}
        one_mesh = {str(each.mesh) for table in self.records[one].tables.values() for each in table.parameters}
        if wrappers & {"fsdp1", "deepspeed"} or ("fsdp2" in wrappers and len(one_mesh) == 1 and _is_flat(self.any)):
            return True
        return None

    @cached_property
    def splits_layers(self) -> bool:
        """True if ranks have parts of some layers and copies of others, as in tensor parallelism by hand."""
        first = {optimizer: self.sampled(optimizer)[:1] for optimizer in self.optimizers}
        return any(self._copies_beside_parts(optimizer, each[0]) for optimizer, each in first.items() if each)

    def is_ddp(self, replica: Replica) -> bool:
        """True if a wrapper of DDP keeps a parameter equal."""
        parameter = self.parameter(replica.optimizer, replica.index, replica.ranks[0])
        return parameter is not None and parameter.ddp is not None


def _is_flat(record: RankRecord) -> bool:
    """True if all DTensors of a rank are on a mesh of one dimension."""
    meshes = [each.mesh for table in record.tables.values() for each in table.parameters]
    return all(isinstance(mesh, list) and all(isinstance(rank, int) for rank in mesh) for mesh in meshes)


def _are_same(parameters: list[Parameter]) -> bool:
    """True if an optimizer's place holds the parameter of the same name and shape on all ranks."""
    first = parameters[0]
    return all((each.shape, each.names, each.offset) == (first.shape, first.names, first.offset) for each in parameters)


def _equal_gradients(moment: Moment, index: int) -> bool:
    """True if all ranks step with the same gradient, not zero, of losses that differ: so it was reduced."""
    losses = {tuple(backward.loss for backward in step.backwards) for step in moment.of.values()}
    if len(losses) < 2 or any(None in each or not each for each in losses):
        return False
    first = next(iter(moment.of.values())).gradient(index)
    bits = {step.gradient_bits(index) for step in moment.of.values()}
    return len(moment.of) > 1 and first is not None and bool(first.norm) and len(bits) == 1


def _gradients_after_backward(step: Step) -> list[int | None]:
    """Return the bits of the gradients that the last backward pass left, before anything scaled them."""
    return step.backwards[-1].bits.get(step.optimizer, []) if step.backwards else []


def _nth(values: Sequence[int | None], index: int) -> int | None:
    return values[index] if index < len(values) else None


def _agree(bits: list[int | None]) -> bool:
    """True if all are the same number, and neither zero nor unknown."""
    return len(set(bits)) == 1 and bool(bits[0])


def _known_ranks(parameter: Parameter, rank: int) -> tuple[int, ...] | None:
    """Return the ranks on which DDP or a mesh keeps a parameter equal; None if neither does."""
    if parameter.ddp is not None:
        return tuple(parameter.ddp)
    if parameter.mesh is None or parameter.placements is None:
        return None
    coordinates = dict(_coordinates(parameter.mesh, ()))
    own = coordinates.get(rank)
    if own is None:
        return None
    fixed = [place for place, placement in enumerate(parameter.placements) if not placement.startswith("R")]
    same = (other for other, at in coordinates.items() if all(at[place] == own[place] for place in fixed))
    return tuple(sorted(same))


def _coordinates(mesh: Any, at: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each rank of a mesh with its coordinates."""
    if isinstance(mesh, int):
        yield mesh, at
        return
    for number, part in enumerate(mesh):
        yield from _coordinates(part, (*at, number))
