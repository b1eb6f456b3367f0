"""Call the learner's functions, in one process."""

from types import ModuleType
from typing import Any


def rows_of(schedule: Any) -> Any:
    """Return a schedule as lists of (kind, stage, micro) if it has that form, else its beginning as text."""
    try:
        rows = [[(str(kind), int(stage), int(micro)) for kind, stage, micro in row] for row in schedule]
    except (TypeError, ValueError):
        return repr(schedule)[:200]
    return [[list(action) for action in row] for row in rows]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = []
    for name, sizes in case["calls"]:
        try:
            value = getattr(learner, name)(*sizes)
        except Exception as error:
            error.add_note(f"({name}({', '.join(map(str, sizes))}))")
            raise
        found.append(value if name == "bubble" else rows_of(value))
    return found
