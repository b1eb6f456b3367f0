"""Read run files and model files, and report all their mistakes together."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from frog.core.config.hugging_face import from_hugging_face
from frog.core.config.model import ModelConfig
from frog.core.config.other_models import sizes_of
from frog.core.config.run_config import ModelSource, RunConfig
from frog.core.errors import ConfigError
from frog.core.schema import convert, parse_toml, read_toml, read_typed, shortened
from frog.core.user_input import did_you_mean

SIMULATED_LAYOUT = "simulated layout"
"""The section of a simulated run's configuration, which no training program can read."""

_MOST_UNKNOWN, _MOST_PARTS = 100, 8
"""Most unknown keys of a table to report, and most parts of an override's key."""

_LONG_NUMBER = re.compile(r"[+-]?(0x)?[0-9a-fA-F_]{17,}$|[+-]?0[ob][0-7_]{20,}$")

_hints_of: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""The types of a section's fields; without a cache, their lookup takes most of the time of reading a file."""


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file and the model file that it names.

    Overrides are texts like `train.steps=200` or `model.num_hidden_layers=4`; values are TOML, bare words are strings.

    Raises:  ConfigError listing every mistake of both files and of the overrides.
    """
    try:
        table = read_toml(path, ConfigError, "correct that file, or name another")
    except FileNotFoundError:
        known = sorted(str(candidate) for candidate in path.parent.glob("*.toml"))
        hint = f"one of {', '.join(known)}" if known else "`frog init DIR` creates a folder with a run file"
        raise ConfigError(f"{path}: no such run file", hint) from None
    problems: list[str] = []
    for text in overrides:
        _apply_override(table, text, problems)
    return parse_run_config(table, path, problems)


def parse_run_config(table: dict[str, Any], path: Path, problems: list[str] | None = None) -> RunConfig:
    """Build a RunConfig from a run file's content; `path` locates the model file and appears in errors."""
    problems = [] if problems is None else problems
    table = dict(table)
    section = table.pop("model", {})
    model_table: dict[str, Any] = dict(section) if isinstance(section, dict) else {}
    if not isinstance(section, dict):
        problems.append(f"model={_short(section)}: must be a table, [model]")
    source_table: dict[str, Any] = {key: model_table.pop(key) for key in ("file", "init_from") if key in model_table}
    source = build_section(ModelSource, source_table, "model.", problems)
    model = _read_model(path.parent / source.file if source else None, model_table, problems)

    hints = _hints_of(RunConfig)
    valid = [name for name in hints if name != "source"]
    problems += unknown_keys(table, valid)
    values = {key: _check(key, value, hints[key], problems) for key, value in table.items() if key in valid}
    if not problems and model is not None and source is not None:
        config = RunConfig(model=model, source=source, **values)
        problems += config.problems()
        if not problems:
            return config
    raise ConfigError(list_problems(path, problems), "correct the lines above; nothing was started")


def load_model_config(path: Path) -> ModelConfig:
    """Read a config.json of a Llama-like model in Hugging Face's format.

    Raises:  ConfigError listing every key that is unknown, missing or out of range.
    """
    problems: list[str] = []
    model = _read_model(path, {}, problems)
    if model is not None:
        problems += model.problems()
    if problems or model is None:
        raise ConfigError(list_problems(path, problems), "correct the lines above")
    return model


def load_model_sizes(path: Path) -> tuple[ModelConfig, list[str]]:
    """Read the sizes of any decoder's config.json, also of one that Frog cannot train.

    Return a model of the same sizes, and what formulas about it leave out.

    Raises:  ConfigError listing every key that is unknown, missing or out of range.
    """
    problems: list[str] = []
    notes: list[str] = []

    def translate(table: dict[str, Any]) -> dict[str, Any]:
        table, remarks = sizes_of(table)
        notes.extend(remarks)
        return table

    model = _read_model(path, {}, problems, translate)
    if model is not None:
        problems += model.problems()
    if problems or model is None:
        raise ConfigError(list_problems(path, problems), "correct the lines above")
    return model, notes


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Return the resolved configuration as plain JSON values; the model's sizes are under `model`."""
    return dataclasses.asdict(config)


def known_config(table: Mapping[str, Any]) -> RunConfig | None:
    """Return a recorded run's configuration; None if it is another version's, or damaged."""
    try:
        return from_dict(table)
    except (ConfigError, KeyError, TypeError, ValueError):
        return None


def override_dict(table: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides like `train.steps=200` to a copy of `to_dict`'s table; ConfigError if one has no `=`."""
    changed = copy.deepcopy(dict(table))
    problems: list[str] = []
    for text in overrides:
        _apply_override(changed, text, problems)
    if problems:
        raise ConfigError(list_problems(Path("--set"), problems), "write KEY=VALUE")
    return changed


def from_dict(table: Any, path: Path = Path("run.json")) -> RunConfig:
    """Invert `to_dict`. Raises ConfigError, naming `path`, if this version did not write the table."""
    problems: list[str] = []
    table = convert(table, dict[str, Any], f"{path}: config", "start a new run", ConfigError)
    if SIMULATED_LAYOUT in table:
        raise ConfigError(
            f"{path}: a simulated run, of which nothing was trained", "it can only be reported and diagnosed"
        )
    config: RunConfig | None = build_section(RunConfig, table, "", problems)
    if config is not None:
        problems = config.problems()
    if problems or config is None:
        raise ConfigError(list_problems(path, problems), "correct the override, or start a new run")
    return config


def list_problems(path: Path, problems: Sequence[str]) -> str:
    count = f"{len(problems)} mistakes" if len(problems) > 1 else "a mistake"
    return f"{path}: {count}\n" + "\n".join(f"  - {shortened(problem, 500)}" for problem in problems)


def unknown(word: str, valid: Sequence[str], what: str = "key") -> str:
    """Return the message for a word that is not in `valid`."""
    return f"{word}: unknown {what}; {did_you_mean(word, valid, cutoff=0.5)}"


def unknown_keys(table: Mapping[str, Any], valid: Collection[str], prefix: str = "") -> list[str]:
    """Return a message for each key that is not in `valid`, at most a hundred, because each is looked up."""
    strange = [key for key in table if key not in valid][:_MOST_UNKNOWN]
    return [unknown(f"{prefix}{key}", [f"{prefix}{name}" for name in valid]) for key in strange]


def _apply_override(table: dict[str, Any], text: str, problems: list[str]) -> None:
    key, equals, value_text = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or len(parts) > _MOST_PARTS:
        problems.append(f"--set {text}: must be KEY=VALUE, like train.steps=200")
        return
    value: Any = value_text.strip()
    if not _is_text(parts):
        with contextlib.suppress(ValueError, RecursionError):  # a bare word is a string
            value = parse_toml(f"value = {value_text}")["value"]
        if isinstance(value, str) and _LONG_NUMBER.match(value):
            problems.append(f"--set {shortened(text)}: a number of more than 64 bits")
            return
    target = table
    for part in parts[:-1]:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            problems.append(f"--set {text}: {part} is not a section")
            return
    target[parts[-1]] = value


def _is_text(parts: Sequence[str]) -> bool:
    """True if an override's key names a string field, so that `name=2026` sets a string."""
    hint: Any = RunConfig
    for part in parts:
        hints = _hints_of(hint) if dataclasses.is_dataclass(hint) else {}
        hint = ModelSource if part == "model" else hints.get(part)
    return hint in (str, str | None)


def _read_model(
    path: Path | None,
    overrides: dict[str, Any],
    problems: list[str],
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> ModelConfig | None:
    if path is None:
        return None
    try:
        table = read_typed(path, dict[str, Any], error=ConfigError)
    except FileNotFoundError:
        problems.append(f"model.file: {path}: no such file")
        return None
    except ConfigError as error:
        problems.append(f"model.file: {error.what}")
        return None
    model: ModelConfig | None = build_section(
        ModelConfig, from_hugging_face(translate({**table, **overrides}), problems), "model.", problems
    )
    return model


def build_section(cls: type[Any], table: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    """Build `cls` from `table`; None after noting unknown, missing or wrongly typed keys."""
    before = len(problems)
    hints = _hints_of(cls)
    problems += unknown_keys(table, hints, prefix)
    values = {
        key: _check(f"{prefix}{key}", value, hints[key], problems) for key, value in table.items() if key in hints
    }
    missing = [
        item.name
        for item in dataclasses.fields(cls)
        if item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
        and item.name not in values
    ]
    problems += [f"{prefix}{name}: missing" for name in missing]
    return cls(**values) if len(problems) == before else None


def _check(name: str, value: Any, hint: Any, problems: list[str]) -> Any:
    """Return `value` if it fits the type `hint` (an int fits a float, a table its section); else note the problem."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(value, dict):
            return build_section(option, value, f"{name}.", problems)  # type: ignore[arg-type]
        if _fits(value, option):
            return float(value) if option is float else value
    expected = " or ".join(f"a table, [{name}]" if dataclasses.is_dataclass(o) else _in_words(o) for o in options)
    if isinstance(value, int | float) and not abs(value) < 1 << 63:
        expected += ", finite and of 64 bits"
    problems.append(f"{name}={_short(value)}: must be {expected}")
    return value


def _fits(value: Any, option: Any) -> bool:
    if typing.get_origin(option) is typing.Literal:
        return value in typing.get_args(option)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    if option is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, option)


def _in_words(option: Any) -> str:
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(option)))
    words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", types.NoneType: "null"}
    return words.get(option, str(option))


def _short(value: Any) -> str:
    """Shorten a value for an error message."""
    return shortened(repr(value))
