"""Calls the learner's functions."""

from types import ModuleType
from typing import Any


def attempt(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        return {"error": str(error)}


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return {
        "plans": [learner.plan(**arguments) for arguments in case["plans"]],
        "kept": [attempt(learner.keep_batch, *arguments) for arguments in case["kept"]],
    }
