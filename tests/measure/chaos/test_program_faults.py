"""Faults in programs that are not Frog's: their text, and their effect on real processes."""

from __future__ import annotations

import pytest

from frog.core.errors import ConfigError
from frog.measure.chaos.program_faults import PROGRAM_KINDS, ProgramFault, parse_program_faults


def parsed(text: str, world_size: int = 2, has_network: bool = False) -> ProgramFault:
    return parse_program_faults([text], world_size, has_network)[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill rank=1 collective=40", ProgramFault("kill", 1, collective=40)),
        ("stop rank=0 after=2.5", ProgramFault("stop", 0, after_s=2.5)),
        ("exit rank=0 after=0 code=3", ProgramFault("exit", 0, after_s=0, code=3)),
        ("exit rank=0 after=1 code=255", ProgramFault("exit", 0, after_s=1, code=255)),
        ("exit rank=0 after=1", ProgramFault("exit", 0, after_s=1, code=0)),
        ("slow rank=0 after=1", ProgramFault("slow", 0, after_s=1, factor=2.0)),
        ("slow collective=1 factor=1.5 rank=1", ProgramFault("slow", 1, collective=1, factor=1.5)),
        ("slow collective=1 factor=100 rank=1", ProgramFault("slow", 1, collective=1, factor=100)),
    ],
)
def test_fault_of_a_program_is_parsed(text: str, fault: ProgramFault) -> None:
    assert parsed(text) == fault
    assert parsed(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a kind of fault"),
        ("kil rank=1 after=1", "'kil' is not a kind of fault: did you mean kill?"),
        ("kill after=1", "rank= must be 0 to 1"),
        ("kill rank=2 after=1", "rank= must be 0 to 1"),
        ("kill rank=1", "needs either collective=N or after=SECONDS"),
        ("kill rank=1 after=1 collective=2", "needs either collective=N or after=SECONDS"),
        ("kill rank=1 after=soon", "after=soon must be a number of seconds"),
        ("kill rank=1 after=nan", "after=nan must be a number of seconds"),
        ("kill rank=1 after=-1", "after=-1 must be a number of seconds"),
        ("kill rank=-1 after=1", "rank= must be 0 to 1"),
        ("kill rank=0.5 after=1", "rank=0.5 must be an integer"),
        ("kill rank=1 after=inf", "after=inf must be a number of seconds"),
        ("kill rank=1 after=", "after= must be a number of seconds"),
        ("kill rank=1 collective=0", "collective=0 must be an integer from 1"),
        ("kill rank=1 collective=1.5", "collective=1.5 must be an integer from 1"),
        ("kill rank=1 after", "cannot read 'after'"),
        ("exit rank=1 after=1 code=-1", "code=-1 must be an integer from 0 to 255"),
        ("exit rank=1 after=1 code=1.5", "code=1.5 must be an integer from 0 to 255"),
        ("slow rank=1 after=1 factor=100.5", "factor=100.5 must be more than 1 and at most 100"),
        ("kill rank=1 rank=1 after=1", "cannot read 'rank=1'"),
        ("kill rank=1 after=1 code=2", "cannot read 'code=2'"),
        ("exit rank=1 after=1 code=256", "code=256 must be an integer from 0 to 255"),
        ("slow rank=1 after=1 factor=1", "factor=1 must be more than 1 and at most 100"),
        ("cut rank=1 after=1", "there is no simulated network"),
    ],
)
def test_mistake_in_a_fault_of_a_program_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert f"--fault {text!r}: {message}" in caught.value.what


def test_hint_says_how_to_write_a_fault() -> None:
    for text, hint in (
        ("kill rank=1 rank=1 after=1", "each field once"),
        ("kill rank=1 after=1 code=2", "the fields are rank, collective, after"),
        ("exit rank=1 after=1 factor=2", "the fields are rank, collective, after, code"),
        ("cut rank=1 after=1", '--nodes 2x1 --network "delay=1ms"'),
    ):
        with pytest.raises(ConfigError) as caught:
            parsed(text)
        assert caught.value.hint == hint
    assert parsed("cut rank=1 after=1", has_network=True) == ProgramFault("cut", 1, after_s=1)
    assert parsed("node rank=7 after=1", world_size=8).rank == 7


def test_only_a_slow_process_lets_the_world_continue() -> None:
    assert [name for name, kind in PROGRAM_KINDS.items() if not kind.ends] == ["slow"]
    assert [name for name, kind in PROGRAM_KINDS.items() if kind.needs_network] == ["cut"]


def test_every_kind_can_be_injected() -> None:
    import ast

    from frog.observe.environment import HOOK

    tree = ast.parse((HOOK / "frog_observer" / "faults.py").read_text())
    acts = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "_ACTS")  # type: ignore[attr-defined]
    assert sorted(key.value for key in acts.keys) == sorted(PROGRAM_KINDS)  # type: ignore[attr-defined]
