"""The generated reference is complete: commands, fields, events, docstrings."""

from __future__ import annotations

import dataclasses
import re
from typing import get_args

import pytest

from frog.cli import _parser
from frog.core.config.model import ModelConfig
from frog.core.config.run_config import RunConfig
from frog.core.runs.event_schema import RankEvent
from frog.core.runs.launcher_schema import AnyLauncherEvent
from tools.site.declarations import Class, Function, read_module
from tools.site.markdown import docstring
from tools.site.reference import FROG, SECTIONS, api_page, commands_page, events_page, modules_of, run_file_page


def test_reference_lists_every_command_with_its_options() -> None:
    page = commands_page(_parser())
    for command in ("frog train", "frog run", "frog learn check", "frog slurm explain", "frog docs"):
        assert re.search(rf"^##+ {command}$", page, re.MULTILINE), command
    assert re.search(r"^\| `--nproc N` \| .*rank", page, re.MULTILINE)
    assert "SUPPRESS" not in page


def test_reference_lists_every_run_file_field_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", run_file_page(), re.MULTILINE))
    sections = {field.name: field.type for field in dataclasses.fields(RunConfig)}
    expected = {"name", "seed"} | {field.name for field in dataclasses.fields(ModelConfig)}
    for section, (file, name) in SECTIONS.items():
        found = read_module(FROG / file).class_named(name)
        expected |= {f"{section}.{field.name}" for field in found.fields}
        assert section in sections
    assert rows.keys() == expected
    assert [name for name, row in rows.items() if not row.split(" | ")[-1].strip()] == [], "fields without a meaning"


def test_reference_shows_units_of_run_file_numbers() -> None:
    fields = {"": read_module(FROG / "core/config/run_config.py").class_named("RunConfig").fields}
    fields |= {f"{name}.": read_module(FROG / file).class_named(cls).fields for name, (file, cls) in SECTIONS.items()}
    numbers = {f"{at}{item.name}" for at, found in fields.items() for item in found if re.match("int|float", item.type)}
    with_unit = {
        f"{at}{item.name}": item.unit for at, found in fields.items() for item in found if item.unit is not None
    }
    assert numbers == set(with_unit)
    assert with_unit["train.timeout_s"] == "s"
    assert "| `train.timeout_s` | `float` | `120.0` | s |" in run_file_page()


def test_reference_lists_every_event() -> None:
    page = events_page()
    kinds = {kind.__name__ for union in (RankEvent, AnyLauncherEvent) for kind in get_args(union)}
    assert {kind for kind in kinds if f"### {kind}\n" not in page} == set()


def test_docstring_fields_become_a_list() -> None:
    text = "Sum *all* of it.\n\nComm:    one all-reduce\n         over dp.\nRaises:  ShapeError."
    assert docstring(text) == "Sum \\*all\\* of it.\n\n- **Comm:** one all-reduce over dp.\n- **Raises:** ShapeError."


@pytest.mark.parametrize("name", ["comm", "parallel", "train"])
def test_api_pages_have_signatures_and_docstrings(name: str) -> None:
    page = api_page(name)
    modules = [read_module(path) for path in modules_of(name) if path.name != "__init__.py"]
    items = [item for module in modules for item in module.items]
    assert len(items) > 10
    assert [item.name for item in items if f"### {item.name}\n" not in page] == []
    assert [item.name for item in items if isinstance(item, Class | Function) and not item.doc] == []
