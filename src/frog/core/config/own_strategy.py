"""A strategy of one's own, `strategy.file`: its entry, and the file itself."""

from __future__ import annotations

import ast
from pathlib import Path

from frog.core.config.strategies import DataStrategyEntry
from frog.core.errors import ConfigError
from frog.core.schema import read_bounded


def own_entry(file: str) -> DataStrategyEntry:
    """Return the entry of the strategy that a file contains; nothing is known of its memory and traffic."""
    name = Path(file).stem or file
    return DataStrategyEntry(
        name=name,
        title=name,
        summary=f"A strategy of your own, from {file}; no formula knows its memory and its traffic.",
        use="you wrote it: docs/train/own-strategy.md",
        modules={"frog": "frog.train.parallel.data.from_file"},
        has_formulas=False,
    )


def file_problem(file: str | None) -> str | None:
    """Return why the file of a strategy of one's own is missing or not Python, or None; runs nothing.

    Raises:  ConfigError if the file cannot be read.
    """
    if file is None:
        return None
    try:
        ast.parse(read_bounded(Path(file), ConfigError), file)
    except SyntaxError as error:
        return f"{file}:{error.lineno}: {error.msg}: {(error.text or '').strip()}"
    except FileNotFoundError:
        return f"strategy.file={file!r}: no such file; a run's folder keeps a copy of its file, strategy.py"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"strategy.file={file!r}: not Python: {error}"
    return None
