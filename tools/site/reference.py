"""The reference, generated from the code: commands, fields of run files and events, and the Python API."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import frog
from tools.site.declarations import Class, Field, Function, read_module
from tools.site.markdown import docstring, fence, prose, table

FROG = Path(frog.__file__).parent

API = {
    "comm": "train/comm",
    "parallel": "train/parallel",
    "model": "train/model",
    "data": "train/data",
    "checkpoint": "train/checkpoint",
    "optim": "train/optim",
    "train": "train",
    "config": "core/config",
    "runs": "core/runs",
    "diagnose": "observe/diagnose",
    "plan": "plan",
}
"""Pages about the packages that programs and notebooks import, each with its folder; the others are commands."""

SECTIONS = {
    "model": ("core/config/run_config.py", "ModelSource"),
    "data": ("core/config/run_config.py", "DataConfig"),
    "train": ("core/config/run_config.py", "TrainConfig"),
    "comm": ("core/config/run_config.py", "CommConfig"),
    "strategy": ("core/config/strategy.py", "StrategyConfig"),
    "optimizer": ("core/config/optimizers.py", "OptimizerConfig"),
    "eval": ("core/config/run_config.py", "EvalConfig"),
    "checkpoint": ("core/config/run_config.py", "CheckpointConfig"),
}
"""Sections of a run file, each with its class."""


def reference_pages(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return every page of the reference, by path."""
    pages = {
        "reference/commands.md": commands_page(parser),
        "reference/run-file.md": run_file_page(),
        "reference/events.md": events_page(),
    }
    return pages | {f"reference/api/{name}.md": api_page(name) for name in API}


def commands_page(parser: argparse.ArgumentParser) -> str:
    parts = [
        "# Commands\n\nGenerated from the argument parsers: the output of `frog COMMAND --help`.\n",
        table(
            ["command", "does"], [(f"[`{p.prog}`](#{_slug(p.prog)})", prose(about)) for p, about in _commands(parser)]
        ),
    ]
    parts += [part for command, about in _commands(parser) for part in _command(command, about, 2)]
    return "\n".join(parts)


def _slug(name: str) -> str:
    return re.sub(r"[^\w -]", "", name).lower().replace(" ", "-")


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield the sub-commands, each with its help text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((command, said.get(name, "")) for name, command in action.choices.items())


def _command(command: argparse.ArgumentParser, about: str, level: int) -> Iterator[str]:
    command.formatter_class = partial(argparse.HelpFormatter, width=88)
    yield f"{'#' * level} {command.prog}\n"
    yield prose(command.description or f"{about[:1].upper()}{about[1:]}.") + "\n"
    yield fence(command.format_usage().removeprefix("usage: "))
    rows = [_row(command, action) for action in command._actions if _is_shown(action)]
    if rows:
        yield table(["argument", "meaning"], rows)
    for inner, words in _commands(command):
        yield from _command(inner, words, min(level + 1, 4))


def _is_shown(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help != argparse.SUPPRESS


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    formatter = command._get_formatter()
    name = formatter._format_action_invocation(action)
    words = formatter._expand_help(action) if action.help else ""
    if action.choices and "," not in name:
        words = f"{words} ({', '.join(map(str, action.choices))})".strip()
    if not words and action.default is not None:
        words = f"default: {action.default}"
    return " ".join(f"`{part}`" for part in name.split(", ")), prose(words)


def run_file_page() -> str:
    parts = [
        "# Run file\n\nA run is TOML; `--set SECTION.FIELD=VALUE` overrides one field. Unknown fields are errors that "
        "name the nearest valid one. Generated from the classes of a run file.\n"
    ]
    parts.append("## At the top\n\n" + _fields_table("", _class("core/config/run_config.py", "RunConfig")))
    for section, place in SECTIONS.items():
        found = _class(*place)
        about = found.doc.removeprefix(f"[{section}]").removeprefix(":").strip()
        parts.append(f"## [{section}]\n\n{prose(about)}\n\n{_fields_table(f'{section}.', found)}")
    sizes = _class("core/config/model.py", "ModelConfig")
    rows = [(f"`{field.name}`", *_type_and_default(field), prose(field.doc)) for field in sizes.fields]
    about = (
        "`model.file` names this file: the sizes of the model in Hugging Face's format. `[model]` may override each."
    )
    parts.append(f"## The model file\n\n{about}\n\n{table(['field', 'type', 'default', 'meaning'], rows)}")
    return "\n".join(parts)


def _class(file: str, name: str) -> Class:
    return read_module(FROG / file).class_named(name)


def _fields_table(prefix: str, found: Class) -> str:
    simple = [field for field in found.fields if "Config" not in field.type and field.type != "ModelSource"]
    rows = [
        (f"`{prefix}{field.name}`", *_type_and_default(field), field.unit or "", prose(field.doc)) for field in simple
    ]
    return table(["field", "type", "default", "unit", "meaning"], rows)


def _type_and_default(field: Field) -> tuple[str, str]:
    default = "required" if field.default is None else f"`{_toml(field.default)}`"
    return _words_of_type(field.type), "none" if field.default == "None" else default


def _toml(value: str) -> str:
    """Format a default value as in a run file."""
    return {"True": "true", "False": "false"}.get(value, value.replace("'", '"'))


def _words_of_type(type_: str) -> str:
    said = type_.replace(" | None", "")
    said = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", '"'), said)
    return ", ".join(f"`{part.strip()}`" for part in re.split(r"[,|]", said))


def events_page() -> str:
    parts = [
        "# Events\n\nOne JSON object per line; `event` names its kind. Generated from the classes of the events. "
        "[The run folder](../docs/observe/run-folder.md) describes where the files are and how to read them.\n"
    ]
    for title, file in (
        ("Events of ranks", "core/runs/event_schema.py"),
        ("Events of the launcher", "core/runs/launcher_schema.py"),
    ):
        module = read_module(FROG / file)
        parts.append(f"## {title}\n\n`src/frog/{file}`\n\n{docstring(module.doc)}\n")
        for found in module.items:
            if isinstance(found, Class) and found.fields:
                parts.append(f"### {found.name}\n\n{docstring(found.doc)}\n\n{_event_fields(found)}")
    return "\n".join(parts)


def _event_fields(found: Class) -> str:
    own = [base for base in found.bases if base not in ("Typed", "Event")]
    more = f"In addition to the fields of {', '.join(f'`{base}`' for base in own)}:\n\n" if own else ""
    rows = [(f"`{field.name}`", f"`{field.type}`", prose(field.doc)) for field in found.fields]
    return more + table(["field", "type", "meaning"], rows)


def modules_of(name: str) -> list[Path]:
    """Return the files that a page of the API describes; a package inside another one may have its own page."""
    others = [FROG / folder for folder in API.values() if folder.startswith(f"{API[name]}/")]
    return sorted(path for path in (FROG / API[name]).rglob("*.py") if not set(others) & set(path.parents))


def api_page(name: str) -> str:
    """Return the page of a package: its public names with their docstrings."""
    title = API[name].replace("/", ".")
    parts = [f"# frog.{title}\n\n{docstring(read_module(FROG / API[name] / '__init__.py').doc)}\n"]
    for path in modules_of(name):
        module = read_module(path)
        if path.name != "__init__.py" and module.items:
            name = ".".join(path.relative_to(FROG.parent).with_suffix("").parts)
            parts.append(f"## {name}\n\n{docstring(module.doc)}\n")
            parts += [_item(item) for item in module.items]
    return "\n".join(parts)


def _item(item: Class | Function) -> str:
    if isinstance(item, Function):
        return f"### {item.name}\n\n{fence(_wrapped(item.signature), 'python')}\n{docstring(item.doc)}\n"
    head = f"class {item.name}({', '.join(item.bases)})" if item.bases else f"class {item.name}"
    parts = [f"### {item.name}\n\n{fence(head, 'python')}\n{docstring(item.doc)}\n"]
    if item.fields:
        rows = [(f"`{field.name}`", f"`{field.type}`", prose(field.doc)) for field in item.fields]
        parts.append(table(["field", "type", "meaning"], rows))
    for method in item.methods:
        parts.append(f"{fence(_wrapped(method.signature), 'python')}\n{docstring(method.doc)}\n")
    return "\n".join(parts)


def _wrapped(signature: str) -> str:
    """Wrap a long signature, one argument per line."""
    name, _, rest = signature.partition("(")
    arguments, _, returns = rest.rpartition(")")
    if len(signature) <= 88 or not arguments:
        return signature
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return f"{name}(\n" + "".join(f"    {part.strip()},\n" for part in parts) + f"){returns}"
