"""Give the learner's function the variables of every task of some jobs."""

from types import ModuleType
from typing import Any


def work(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """The first hosts of the lists, and torch's variables of each task of each job."""
    return {
        "hosts": [learner.first_host(text) for text in case["lists"]],
        "jobs": [[plain(learner.torch_variables(dict(task))) for task in job] for job in case["jobs"]],
    }


def plain(variables: Any) -> Any:
    """As a dict of plain values, whatever kind of mapping it was."""
    return dict(variables) if hasattr(variables, "items") else variables
