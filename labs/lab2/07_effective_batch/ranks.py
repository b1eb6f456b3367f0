"""Calls the learner's functions."""

from types import ModuleType
from typing import Any


def called(function: Any, *arguments: Any, **named: Any) -> Any:
    """Return the function's result. An error says how it was called."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        told = ", ".join([*map(str, arguments), *(f"{name}={value:g}" for name, value in named.items())])
        error.add_note(f"({function.__name__}({told}))")
        raise


def attempt(function: Any, *arguments: Any) -> Any:
    try:
        return called(function, *arguments)
    except ValueError as error:
        return {"error": str(error)}


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return {
        "plans": [called(learner.plan, **arguments) for arguments in case["plans"]],
        "kept": [attempt(learner.keep_batch, *arguments) for arguments in case["kept"]],
    }
