"""The grader's reserve process, without forks: its requests, its limits of time, and the modules it loads first."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from frog.learn.grader import reserve
from frog.learn.grader.judge import Request
from frog.learn.grader.verdict import Verdict

REQUEST = Request(exercise="/course/lab1/ex2", files={}, seed=7)
RIGHT = Verdict(exercise="lab1/ex2", status="passed", misconception="", observed="", seed=7, seconds=1)
CHILD = 4_000_000


class Pipe:
    """A connection that receives the given messages, and then ends."""

    def __init__(self, *messages: bytes) -> None:
        self.messages, self.sent = list(messages), []  # type: ignore[var-annotated]

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def recv_bytes(self) -> bytes:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is ended and reaped, in order."""
    done: list[Any] = []
    system = {
        "pipe": lambda: (3, 4),
        "fork": lambda: CHILD,
        "close": lambda number: done.append(f"close {number}"),
        "killpg": lambda pid, number: done.append(("group", pid, number)),
        "kill": lambda pid, number: done.append(("process", pid, number)),
        "waitpid": lambda pid, _options: done.append(f"wait {pid}"),
    }
    monkeypatch.setattr(reserve, "os", SimpleNamespace(**system))
    monkeypatch.setattr(reserve, "reap_orphans", lambda: done.append("orphans"))
    monkeypatch.setattr(reserve, "end_descendants", lambda: done.append("descendants"))
    return done


ENDS = ["close 4", ("group", CHILD, signal.SIGKILL), ("process", CHILD, signal.SIGKILL), f"wait {CHILD}", "orphans"]


@pytest.mark.parametrize(
    ("answers", "ready", "slow", "limit", "observed"),
    [
        ([msgspec.json.encode(RIGHT)], True, 1.0, 300, None),
        ([msgspec.json.encode(RIGHT)], True, 2.0, 600, None),
        ([], True, 1.0, 300, "The grader's own process ended."),
        ([], False, 1.0, 300, "The check did not finish within 300 s."),
        ([], False, 2.5, 750, "The check did not finish within 750 s."),
    ],
    ids=["a verdict", "a verdict on a slow machine", "an end", "too long", "too long on a slow machine"],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="judges are forked on Linux only")
def test_judge_is_waited_for_and_ended(
    answers: list[bytes],
    ready: bool,
    slow: float,
    limit: float,
    observed: str | None,
    ended: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, client, waited = Pipe(*answers), Pipe(), []

    def wait(objects: list[Any], most_s: float) -> list[Any]:
        waited.append((objects, most_s))
        return [answer] if ready else [client]

    monkeypatch.setattr(reserve, "Connection", lambda number, writable: answer if number == 3 else None)
    monkeypatch.setattr(reserve, "wait", wait)
    verdict = reserve._checked(REQUEST, client, slow)  # type: ignore[arg-type]
    assert waited == [([answer, client], limit)]
    if observed is None:
        assert verdict == RIGHT
        assert ended == ENDS
    else:
        assert ended == [*ENDS, "descendants"]
        assert verdict == Verdict(
            exercise="lab1/ex2", status="broken", misconception="broken", observed=observed, seed=7, seconds=0
        )


@pytest.mark.parametrize("missing", [{"killpg"}, {"kill"}, {"killpg", "kill"}])
def test_judge_that_has_ended_is_still_reaped(
    missing: set[str], ended: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    for name in missing:
        monkeypatch.setattr(f"frog.learn.grader.reserve.os.{name}", gone)
    answer = Pipe(msgspec.json.encode(RIGHT))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(reserve, "Connection", lambda *_, writable: answer)
    monkeypatch.setattr(reserve, "wait", lambda objects, _most_s: objects[:1])
    assert reserve._checked(REQUEST, Pipe(), 1.0) == RIGHT  # type: ignore[arg-type]
    assert ended[-2:] == [f"wait {CHILD}", "orphans"]


def test_machine_other_than_linux_judges_in_this_process(ended: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(reserve, "judge", lambda request, slow: (request, slow))
    assert reserve._checked(REQUEST, Pipe(), 3.0) == (REQUEST, 3.0)  # type: ignore[arg-type,comparison-overlap]
    assert ended == []


def test_each_request_gets_its_verdict_until_the_client_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    client, called = Pipe(*[msgspec.msgpack.encode(REQUEST)] * 2), []

    def checked(*given: Any) -> Verdict:
        called.append(given)
        return RIGHT

    for name in ("load_all", "use_huge_pages", "take_orphans"):
        monkeypatch.setattr(reserve, name, lambda name=name: called.append(name))
    monkeypatch.setattr("torch.set_num_threads", lambda number: called.append(number))
    monkeypatch.setattr("signal.signal", lambda *given: called.append(given))
    monkeypatch.setattr(reserve, "slowness", lambda: 2.0)
    monkeypatch.setattr(reserve, "Connection", lambda number: client if number == 5 else None)
    monkeypatch.setattr(reserve, "_load_torch_for", lambda path: called.append(path))
    monkeypatch.setattr(reserve, "_checked", checked)
    reserve.main(5)
    begin = [1, "load_all", "use_huge_pages", (signal.SIGINT, signal.SIG_IGN), "take_orphans"]
    assert called == begin + [Path(REQUEST.exercise), (REQUEST, client, 2.0)] * 2
    assert client.sent == [b"ready"] + [msgspec.json.encode(RIGHT)] * 2


def test_modules_of_torch_that_an_exercise_names_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(name: str) -> None:
        loaded.append(name)
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", load)
    (tmp_path / "reference").mkdir()
    (tmp_path / "check.py").write_text("import torch.one, os, torches\nfrom torch.two import a\nfrom . import b\n")
    (tmp_path / "ranks.py").write_text("import torch.wrong(\n")
    (tmp_path / "reference" / "a.py").write_text("import torch\nimport torch.nn\ndef f():\n    import torch.three\n")
    (tmp_path / "other.py").write_text("import torch.four\n")
    reserve._load_torch_for(tmp_path)
    assert sorted(loaded) == ["torch.one", "torch.three", "torch.two"]
