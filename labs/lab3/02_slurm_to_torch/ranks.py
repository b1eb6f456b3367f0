"""Call the learner's functions with the variables of every task of several jobs."""

from types import ModuleType
from typing import Any


def work(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Return the first host of each list, and torch's variables of each task of each job."""
    return {
        "hosts": [learner.first_host(text) for text in case["lists"]],
        "jobs": [[plain(learner.torch_variables(dict(task))) for task in job] for job in case["jobs"]],
    }


def plain(variables: Any) -> Any:
    """Return any mapping as a dict of plain values."""
    return dict(variables) if hasattr(variables, "items") else variables
