"""Names of process groups, which may differ from rank to rank, matched by the members of the groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frog.observe.diagnose.program.evidence import Evidence, Group

_DEFAULT = Group((), "0")


class GroupNames:
    """The groups of one rank, by torch's name for them.

    others: the groups of another rank, for a rank of which only the names are known.
    """

    def __init__(
        self, members: Mapping[str, tuple[int, ...]] | None = None, others: Mapping[str, Group] | None = None
    ) -> None:
        self.found: dict[str, Group] = dict(others or {})
        numbers: dict[tuple[int, ...], int] = {}
        for name, ranks in sorted((members or {}).items(), key=lambda item: _order(item[0])):
            key = tuple(sorted(set(ranks)))
            if key:
                self.found[name] = Group(key, str(numbers.get(key, 0)))
                numbers[key] = numbers.get(key, 0) + 1

    def find(self, name: str) -> Group:
        """Return the group with a name; one without members if they are unknown."""
        return self.found.setdefault(name, Group((), name))


def _order(name: str) -> tuple[int, int, str]:
    """Sort numbers in the order of their creation, before other names."""
    return (0, int(name), name) if name.isdecimal() and len(name) < 12 else (1, 0, name)


def name_default_group(evidence: Evidence) -> None:
    """Give the group that init_process_group creates its members, where a rank's record does not name them.

    torch forgets them in destroy_process_group, and gloo's dumps never have them.
    """
    members = tuple(evidence.world)
    if len(members) < 2:
        return
    world = Group(members, "0")
    for rank in evidence.ranks.values():
        rank.calls = [replace(call, group=world) if call.group == _DEFAULT else call for call in rank.calls]
        for counts in (rank.enqueued, rank.completed):
            if _DEFAULT in counts:
                counts[world] = counts.pop(_DEFAULT)
