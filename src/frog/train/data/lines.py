"""Parses one JSON line of a user's corpus. Accepts any keys, and NaN: callers check only the fields that they use."""

from __future__ import annotations

import json
from typing import Any

from frog.core.errors import DataError
from frog.core.schema import check_depth, has_too_many_values

_REPAIR = "repair the line"


def parse_line(line: str, place: str) -> Any:
    """Return the value of a line. Raises DataError with `place` and column if it is not JSON, or not valid Unicode."""
    if has_too_many_values(line):
        raise DataError(f"{place}: contains too many values", _REPAIR)
    try:
        value = json.loads(line)
        check_depth(value)
        if "\\u" in line:  # such an escape may be half a surrogate pair, which is not a character
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        raise DataError(f"{place}, column {error.colno}: not valid JSON: {error.msg}", _REPAIR) from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(f"{place}: not valid JSON: half a surrogate pair, {half!a}", _REPAIR) from None
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON: {error}", _REPAIR) from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply", _REPAIR) from None
