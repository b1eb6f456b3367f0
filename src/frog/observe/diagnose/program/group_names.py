"""Names of process groups, which may differ from rank to rank, matched by the members of the groups."""

from __future__ import annotations

from collections.abc import Mapping

from frog.observe.diagnose.program.evidence import Group


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
