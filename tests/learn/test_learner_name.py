"""The name that a learner types: what is accepted, what is said, and how often frog asks."""

from __future__ import annotations

import pytest

from frog.core.errors import UsageError
from frog.learn import naming

PROMPT = "Your name, as your instructor will see it (Enter: nobody): "
REFUSED = "use 1 to 80 printable characters"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a", "a"),
        ("  Ada   King \t Lovelace\n", "Ada King Lovelace"),
        ("x" * 80, "x" * 80),
        (" " * 90 + "x", "x"),
        ("Zoë 蛙", "Zoë 蛙"),
    ],
)
def test_name_has_single_spaces(text: str, name: str) -> None:
    assert naming.checked_name(text) == name


@pytest.mark.parametrize("text", ["", " \t", "x" * 81, "x" * 200, "a\x1b[31m", "a\0b"])
def test_name_of_no_or_too_many_or_control_characters_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        naming.checked_name(text)
    assert REFUSED in str(refused.value)
    assert f"{text[:80]!r} is not a valid name" in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "name", "asked"),
    [
        (["Ada"], "Ada", 1),
        ([" Ada  King "], "Ada King", 1),
        ([""], "nobody", 1),
        ([" \t "], "nobody", 1),
        (["a\0", "Ada"], "Ada", 2),
        (["a\0", "a\0", "Ada"], "Ada", 3),
        (["a\0", "a\0", "a\0", "Ada"], "nobody", 3),
        (["a\0"], "nobody", 2),
        ([], "nobody", 1),
    ],
)
def test_name_is_asked_up_to_three_times(
    lines: list[str], name: str, asked: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, typed = [], iter(lines)

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr(naming, "read_line", read_line)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert naming.typed_name("nobody") == name
    assert prompts == [PROMPT] * asked
    assert capsys.readouterr().out.count(REFUSED) == min(lines.count("a\0"), 3)


def test_name_is_not_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "read_line", lambda _prompt: pytest.fail("asked"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert naming.typed_name("nobody") == "nobody"
