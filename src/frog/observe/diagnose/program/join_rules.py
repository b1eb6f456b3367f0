"""Rules about ranks that do not agree on their groups: the size of the world, or the members of a new group."""

from __future__ import annotations

import re
from collections import Counter

from frog.core.runs.observed import CodeLine, Joining
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_blocks import Block, text_of
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.code_partings import parting_of, stack_of
from frog.observe.diagnose.program.condition_sources import source_words
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, at_place, place
from frog.observe.diagnose.program.library_partings import lines_with, user_files
from frog.observe.diagnose.program.parting_words import passes_alone
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks, they_wait

_NEW_GROUP = re.compile(r"\bnew_group\(")
_ALL_CREATE = (
    "all ranks of the world must call new_group, with the same ranks and in the same order, also those outside the new "
    "group: loop over the lists of all groups on every rank\n"
    "use_local_synchronization=True lets only the members call it"
)


def awaits_too_many(evidence: Evidence) -> Diagnosis | None:
    """Find a world size in the call of `init_process_group` that is not the number of ranks that were started."""
    joining = {
        number: rank.joining
        for number, rank in sorted(evidence.ranks.items())
        if rank.joining is not None and rank.joining.op == "init_process_group"
    }
    started = evidence.world_size or 0
    wrong = [number for number, join in joining.items() if join.world_size and join.world_size > started > 0]
    if not wrong or not evidence.has_failed:
        return None
    first = evidence.ranks[wrong[0]]
    size, line = joining[wrong[0]].world_size or 0, _first_line(evidence, wrong)
    never = list(range(started, size))
    return Diagnosis(
        "world_size",
        f"{they_wait(wrong)} in init_process_group{at_place(line)} with world_size={size}, but WORLD_SIZE is "
        f"{started}: {started} {'rank was' if started == 1 else 'ranks were'} started, and {span(never)} never "
        f"{'comes' if len(never) == 1 else 'come'}{_shared_ranks(joining)}",
        rank=wrong[0],
        line=place(line) or None,
        node_rank=first.node_rank if len(evidence.ranks) == 1 else None,
        certain=len(wrong) == started,
        evidence=report_ranks(evidence, wrong),
        advice="pass neither world_size nor rank to init_process_group: it reads WORLD_SIZE and RANK, which the "
        "launcher sets\na size from a setting, or from GPUs times nodes, is wrong as soon as fewer ranks start",
    )


_SETS_MASTER = re.compile(r"""MASTER_(PORT|ADDR)["']\]\s*=(?!=)(?!\s*(["'\d]|str\(\d))|\binit_method=f["']""")
"""A line that computes where the ranks meet."""
_MOST_LINES = 3


def never_meets(evidence: Evidence) -> Diagnosis | None:
    """Find ranks that all wait in `init_process_group`, of the right world size, so that they look at other places."""
    joining = {number: rank.joining for number, rank in sorted(evidence.ranks.items()) if rank.joining is not None}
    is_first = all(join.op == "init_process_group" for join in joining.values())
    if not evidence.has_failed or not is_first or len(joining) < max(2, len(evidence.world)):
        return None
    numbers, line = list(joining), _first_line(evidence, list(joining))
    own = lines_with(user_files(evidence), _SETS_MASTER)
    why = _shared_ranks(joining)
    if 0 < len(own) <= _MOST_LINES:
        texts = " and ".join(f"`{text_of(each).strip()}` at {place(each)}" for each in own)
        why += f"; the program computes where they meet: {texts}, which must be the same on all ranks"
    return Diagnosis(
        "start",
        f"all ranks wait for each other in init_process_group{at_place(line)}, and do not meet{why}",
        rank=numbers[0],
        line=place(line) or None,
        certain=False,
        evidence=report_ranks(evidence, numbers),
        advice="leave MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE as the launcher sets them: ranks that each look "
        "for a free port find different ones, and two processes with one rank do not make a world\nif address and "
        "port are equal on all ranks, look at the network between the hosts: can every node reach that port "
        "(`nc -vz ADDR PORT`)?",
    )


def _first_line(evidence: Evidence, ranks: list[int]) -> CodeLine | None:
    """Return the line at which the first of these ranks waits or got an error, of those whose line is known."""
    lines = (_line(evidence.ranks[number]) for number in ranks)
    return next((line for line in lines if line is not None), None)


def _line(rank: RankEvidence) -> CodeLine | None:
    return rank.error.line if rank.error is not None and rank.error.line is not None else rank.line


def _shared_ranks(joining: dict[int, Joining]) -> str:
    """Say which ranks joined as the same rank."""
    numbers = Counter(join.rank for join in joining.values() if join.rank is not None)
    twice = sorted(number for number, times in numbers.items() if times > 1)
    return f"; {numbers[twice[0]]} processes join as rank {twice[0]}" if twice else ""


def creates_alone(evidence: Evidence) -> Diagnosis | None:
    """Find a rank in `new_group` while other members, which have not called it as often, wait elsewhere or ended."""
    if not evidence.has_failed:
        return None
    for number, rank in sorted(evidence.ranks.items()):
        join = rank.joining
        if join is None or join.op != "new_group" or join.name is None or not join.name.isdecimal():
            continue
        members = [each for each in (join.ranks or evidence.world) if each != number]
        absent = [
            each for each in members if each in evidence.ranks and _comes_no_more(evidence.ranks[each], join.name)
        ]
        if absent:
            inside = sorted(each for each, other in evidence.ranks.items() if other.joining == join)
            return _created_alone(evidence, inside, absent, join.name)
    return None


def _comes_no_more(rank: RankEvidence, name: str) -> bool:
    """True if a rank has not created a group, and waits in a collective or has ended."""
    is_behind = all(int(each) < int(name) for each in rank.groups if each.isdecimal())
    is_elsewhere = bool(rank.pending) or rank.state == "ended" or rank.exit_code == 0
    return rank.joining is None and bool(rank.groups) and is_behind and is_elsewhere


def _created_alone(evidence: Evidence, inside: list[int], absent: list[int], name: str) -> Diagnosis:
    odd = inside[0] if len(inside) <= len(absent) else absent[0]
    rank, other = evidence.ranks[inside[0]], evidence.ranks[absent[0]]
    pending = other.pending[0] if other.pending else None
    does = f"waits in {describe_call(evidence, pending)}" if pending is not None else "ended"
    lines = (rank.line, pending.line if pending is not None else other.line)
    line, peer_line = lines if odd == inside[0] else reversed(lines)
    block = _extra_branch(rank, other)
    why = f": {passes_alone(block, inside[0], absent[0], True)}{source_words(block)}" if block is not None else ""
    return Diagnosis(
        "groups",
        f"{they_wait(inside)} in new_group number {name}{at_place(rank.line)}, which {span(absent)} did not call: rank "
        f"{absent[0]} {does}. {span(inside)} called new_group more often{why}",
        rank=odd,
        node_rank=evidence.ranks[odd].node_rank,
        line=place(line) or None,
        peer_line=place(peer_line) or None,
        certain=False,
        evidence=report_ranks(evidence, [*inside, *absent]),
        advice=_ALL_CREATE,
    )


def _extra_branch(rank: RankEvidence, other: RankEvidence) -> Block | None:
    """Return a branch by which a rank called `new_group` once more than another; None if no branch shows it.

    Its extra call met a later one of the other rank, so that collectives of one group came from different lines.
    """
    there = {(call.group, call.seq): call for call in other.calls}
    met = [(stack_of(call), stack_of(there[call.group, call.seq])) for call in rank.calls if _key(call) in there]
    stacks = [(mine, others) for mine, others in met if mine != others]
    if other.pending:
        now = tuple(frame for frame in rank.stack if is_user_file(frame.file))
        stacks.append((now, stack_of(other.pending[0])))
    partings = (parting_of(mine, others, ()) for mine, others in stacks)
    return next((parting.block for parting in partings if parting is not None and parting.block.kind != "loop"), None)


def _key(call: Call) -> tuple[Group, int]:
    return call.group, call.seq


def groups_differ(evidence: Evidence) -> Diagnosis | None:
    """Find a new group that ranks created with different members, or not all of them, and in which one waits."""
    if not evidence.has_failed:
        return None
    tables = {number: _groups(rank) for number, rank in sorted(evidence.ranks.items()) if _groups(rank)}
    names = sorted({name for table in tables.values() for name in table}, key=int)
    for name in names:
        members = {number: table[name] for number, table in tables.items() if name in table}
        if len(set(members.values())) > 1 and _matters(evidence, name, members):
            return _of_group(evidence, name, members)
    return None


def _groups(rank: RankEvidence) -> dict[str, tuple[int, ...]]:
    """Return the members of a rank's groups that torch has numbered, and of the one that it is creating.

    Every rank counts every call of `new_group`, also for groups that it is not in, so that one number is one call.
    Other names say their members.
    """
    members = {name: tuple(sorted(ranks)) for name, ranks in rank.groups.items() if name.isdecimal() and ranks}
    join = rank.joining
    if join is not None and join.op == "new_group" and join.ranks:
        after = str(max([0, *(int(name) for name in members)]) + 1)  # if the rank is in all groups so far
        name = after if join.name is None else join.name
        if name.isdecimal():
            members[name] = tuple(sorted(join.ranks))
    return members


def _is_numbered(rank: RankEvidence) -> bool:
    """True if the number of the group that the rank is creating is torch's own, or if it creates none."""
    return rank.joining is None or rank.joining.name is not None


def _matters(evidence: Evidence, name: str, members: dict[int, tuple[int, ...]]) -> bool:
    """True if a rank waits in the creation of the group, or in a collective of it."""
    for number, ranks in members.items():
        rank = evidence.ranks[number]
        if rank.joining is not None and rank.joining.op == "new_group" and name not in rank.groups:
            return True
        if any(call.group.members == ranks for call in rank.pending):
            return True
    return False


def _of_group(evidence: Evidence, name: str, members: dict[int, tuple[int, ...]]) -> Diagnosis:
    """Report the ranks that passed other members than the most."""
    counts = Counter(members.values())
    right = max(counts, key=lambda ranks: (counts[ranks], ranks == members[min(members)]))
    odd = [number for number, ranks in members.items() if ranks != right]
    rest = [number for number in members if number not in odd]
    inside = [number for number in members if evidence.ranks[number].joining is not None]
    line = _first_line(evidence, inside)
    calls = [] if inside else lines_with(user_files(evidence), _NEW_GROUP)
    where = f"; {they_wait(inside)} in new_group{at_place(line)}" if inside else ""
    where += "; the program calls it at " + " and ".join(map(place, calls[:3])) if calls else ""
    line = line or next(iter(calls), None)
    return Diagnosis(
        "groups",
        f"{span(odd)} called new_group number {name} with ranks {list(members[odd[0]])}, {span(rest)} with "
        f"{list(right)}{where}",
        rank=odd[0],
        node_rank=evidence.ranks[odd[0]].node_rank,
        line=place(line) or None,
        certain=bool(inside) and all(_is_numbered(evidence.ranks[number]) for number in members),
        evidence=report_ranks(evidence, [*odd, *rest]),
        advice=_ALL_CREATE,
    )
