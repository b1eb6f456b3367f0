"""Process 1 of a pod: the stop signal reaches torchrun whenever it comes, and decides the exit code. No pod runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from frog.cluster.kubernetes import pod

ADDRESS = "--master-addr=pond-0.pond"


class Agent:
    """torchrun, which ends with exit code 7, and which notes the signals that it gets."""

    def __init__(self, begins: Callable[[], None] = lambda: None, runs: Callable[[], None] = lambda: None) -> None:
        self.words: list[str] = []
        self.signals: list[int] = []
        self._begins, self._runs, self._ended = begins, runs, False

    def __call__(self, words: list[str]) -> Agent:
        self.words = words
        self._begins()
        return self

    def poll(self) -> int | None:
        return 7 if self._ended else None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self) -> int:
        self._runs()
        self._ended = True
        return 7


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[pod._Pod]:
    """Return a pod; the test's own handlers of signals come back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.delenv("PET_MASTER_ADDR", raising=False)
    yield pod._Pod()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def start(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> Agent:
    monkeypatch.setattr(pod.subprocess, "Popen", agent)
    return agent


def test_pod_that_is_not_stopped_has_the_exit_code_of_torchrun(made: pod._Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = start(monkeypatch, Agent())
    assert made.run(["train.py", "a"], None) == 7
    assert (agent.words[-2:], agent.signals) == (["train.py", "a"], [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["begins", "runs"])
def test_stop_signal_is_passed_on_as_sigterm(
    number: signal.Signals, moment: str, made: pod._Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start(monkeypatch, Agent(**{moment: lambda: signal.raise_signal(number)}))
    assert made.run(["train.py"], None) == 128 + number
    assert agent.signals == [signal.SIGTERM]


def test_first_of_two_signals_decides_and_an_ended_torchrun_gets_none(
    made: pod._Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start(monkeypatch, Agent(runs=lambda: signal.raise_signal(signal.SIGINT)))

    def last_failures(path: object) -> list[Any]:
        signal.raise_signal(signal.SIGTERM)
        return []

    monkeypatch.setattr(pod, "last_failures", last_failures)
    assert made.run(["train.py"], None) == 128 + signal.SIGINT
    assert agent.signals == [signal.SIGTERM]


def test_pod_waits_for_the_name_of_its_first_pod(
    made: pod._Pod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = [OSError(), OSError(), [(0, 0, 0, "", ("10.0.0.1", 0))]]

    def getaddrinfo(name: str, port: None, type: int) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    start(monkeypatch, Agent())
    monkeypatch.setattr(pod.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(pod.time, "sleep", lambda seconds: None)
    assert made.run([ADDRESS, "train.py"], None) == 7
    waiting, resolved = capsys.readouterr().out.splitlines()
    assert waiting == "waiting for the name pond-0.pond"
    assert resolved.startswith("pond-0.pond resolved to 10.0.0.1 after ")


def test_pod_that_is_stopped_while_it_waits_starts_nothing(made: pod._Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        raise OSError

    agent = start(monkeypatch, Agent())
    monkeypatch.setattr(pod.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(pod.time, "sleep", lambda seconds: None)
    assert made.run([ADDRESS, "train.py"], None) == 128 + signal.SIGINT
    assert agent.words == []
