"""Typed files: valid data is returned; all else is rejected with the file, place, value, expected type, and a hint."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from harness import LIMIT_S

from frog.core.errors import RunError
from frog.core.schema import Typed, convert, decode, parse_toml, read_bounded, read_typed, write_typed


class Part(Typed):
    name: str
    sizes: dict[str, int] = msgspec.field(default_factory=dict)


class Whole(Typed):
    KIND: ClassVar[str] = "a test's file"
    FORMAT: ClassVar[int | None] = 3

    step: int
    parts: list[Part] = msgspec.field(default_factory=list)
    loss: float | None = None


def test_written_instance_is_read_back(tmp_path: Path) -> None:
    whole = Whole(step=4, parts=[Part(name="a", sizes={"x": 1})], loss=0.5)
    write_typed(tmp_path / "whole.json", whole)
    assert read_typed(tmp_path / "whole.json", Whole) == whole
    assert (tmp_path / "whole.json").read_text().startswith('{\n  "format": 3,')


def test_fields_of_a_newer_frog_are_ignored() -> None:
    assert decode('{"format": 3, "step": 1, "new": [1]}', Whole, "f") == Whole(step=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": 3, "step": "many"}', 'f: $.step: found the text "many", expected int'),
        ('{"format": 3, "step": 1.5}', "f: $.step: found 1.5, expected int"),
        ('{"format": 3, "step": true}', "f: $.step: found true, expected int"),
        ('{"format": 3}', "f: object missing required field step"),
        ('{"step": 1}', "f: object missing required field format"),
        ('{"format": 3, "step": 1, "loss": "x"}', 'f: $.loss: found the text "x", expected float | null'),
        (
            '{"format": 3, "step": 1, "parts": [{"name": null}]}',
            "f: $.parts[0].name: found null, expected str",
        ),
        ('{"format": 3, "step": 1, "parts": [{"name": "a", "sizes": {"x": []}}]}', "found array, expected int"),
        ('{"format": 2, "step": 1}', "f: $.format: found 2, expected 3: a test's file of an older Frog"),
        ('{"format": 4, "step": 1}', "f: $.format: found 4, expected 3: a test's file of a newer Frog"),
        ("[]", "f: found a list, expected object"),
        ("", "f: not valid JSON"),
        ('{"format": 3, "step": 1', "f: not valid JSON"),
        ('[{"format": 3}, {"format"', "f: not valid JSON: Expecting ':' delimiter: line 1 column 26"),
        ('{"format": 3, "step": NaN}', "f: not valid JSON"),
        ('{"format": 3, "step": ' + "9" * 5000 + "}", "f: "),
        ('{"format": 3, "step": 1, "parts": ' + "[" * 100_000 + "}", "f: "),
        ('{"format": 3, "step": 1, "new": ' + "[" * 100_000 + "]" * 100_000 + "}", "f: nested too deep"),
        ('{"format": 3, "step": "\ud800"}', "f: "),
    ],
)
def test_data_that_violates_the_schema_is_rejected(text: str, said: str) -> None:
    with pytest.raises(RunError) as caught:
        decode(text, Whole, "f", "restore it")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_convert_checks_tables_of_other_parsers(tmp_path: Path) -> None:
    assert convert({"format": 3, "step": 1}, Whole, "f") == Whole(step=1)
    with pytest.raises(RunError, match=r"f: \$\.step: found a list, expected int"):
        convert({"format": 3, "step": [1]}, Whole, "f")


def test_lone_surrogate_in_a_table_is_rejected() -> None:
    with pytest.raises(RunError, match=r"here: found half a surrogate pair, '\\ud800', expected text"):
        convert({"name": "a", "\ud800": 1}, Part, "here")


def test_pipe_or_folder_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="found a named pipe, expected a file"):
        read_typed(tmp_path / "pipe", Whole)
    with pytest.raises(RunError, match="found a folder, expected a file"):
        read_typed(tmp_path, Whole)
    with pytest.raises(FileNotFoundError):
        read_typed(tmp_path / "none", Whole)
    (tmp_path / "large").write_bytes(b" " * 100)
    with pytest.raises(RunError, match="found 100 bytes, expected at most 10"):
        read_typed(tmp_path / "large", Whole, most_bytes=10)


def test_endless_pipe_of_the_shell_is_read_up_to_the_limit(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b" " * 100)
    with pytest.raises(RunError, match="found more than 10 bytes, expected at most 10"):
        read_typed(Path(f"/dev/fd/{read_end}"), Whole, most_bytes=10)  # the writing end is still open
    os.close(read_end)
    os.close(write_end)


def test_reading_a_file_of_unknown_size_allocates_only_its_content(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    tracemalloc.start()
    try:
        assert read_bounded(tmp_path / "empty", most_bytes=1 << 30) == b""
        assert read_bounded(Path("/proc/self/status"), most_bytes=1 << 30)[:5] == b"Name:"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("levels", [200, 600, 900, 960, 980])
def test_data_nested_too_deeply_to_copy_is_rejected(levels: int) -> None:
    for text in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
        with pytest.raises(RunError, match="f: nested too deeply"):
            decode(f'{{"new": {text}}}', dict[str, Any], "f")


def test_json_with_too_many_values_is_rejected() -> None:
    with pytest.raises(RunError, match="f: found more than 6000000 values"):
        decode('{"new": [' + "{}," * 3_000_000 + "{}]}", dict[str, Any], "f")


@pytest.mark.parametrize(
    "key", ["a" + ".a" * 100_000, '"a"' + ' . "b.c"' * 60_000, "'a'" + ".b" * 40, "x" * 200_000 + ".y" * 100_000]
)
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "x = {{ y = 1, {} = 2 }}", 'x = """\n"""\n{} = 1'])
def test_key_with_too_many_parts_is_rejected(key: str, form: str) -> None:
    with pytest.raises(ValueError, match="a key with more than 32 parts"):
        parse_toml(form.format(key))


def test_nested_toml_tables_are_parsed() -> None:
    with pytest.raises(RecursionError):
        parse_toml("x = " + "{a.a.a = " * 60 + "1" + "}" * 60)


@pytest.mark.parametrize(
    "text",
    ['"{}"', "'{}'", '"""\n{}"""', "'''{}'''", '[0.1, "{}", 0.2]', '1 # "{}', '"\\"{}"', "[" + "0.5, " * 99 + "]"],
)
def test_dots_in_texts_and_numbers_are_not_key_separators(text: str) -> None:
    assert "x" in parse_toml("x = " + text.format("a." * 99))


RACE = """
import sys, threading
from frog.core.schema import Typed, convert, decode

sys.setswitchinterval(1e-6)
fields = "".join(f"    f{i}: 'int | None' = None\\n" for i in range(40))
for number in range(100):
    exec(f"class Inner{number}(Typed):\\n{fields}class Outer{number}(Typed):\\n    inner: Inner{number}\\n{fields}")
for number in range(100):
    both, kind = threading.Barrier(2), globals()[f"Outer{number}"]
    def first():
        both.wait()
        decode(b'{"f1": 1, "inner": {"f39": 2}}', kind, "a file")
    def second():
        both.wait()
        convert({"f1": 1, "inner": {"f39": 2}}, kind, "a table")
    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_two_threads_are_the_first_to_decode_a_type() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
