"""The `frog collectives` commands, as a user types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from wrong_peers import EXAMPLES, WRONG

from frog.cli import main


@pytest.fixture(scope="module")
def idle_peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the command of a peer that returns its input."""
    path = tmp_path_factory.mktemp("peer") / "peer.py"
    path.write_text(WRONG["keeps-its-own"].source())
    return f"{sys.executable} {path}"


def test_finding_is_printed_with_belief_and_question(
    idle_peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = tmp_path / "kept"
    words = ["collectives", "check", "--peer", idle_peer, "--world", "2", "--seed", "5", "--keep", str(keep)]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "✗ results" in said
    assert "The result is this rank's own input." in said
    assert "A misconception behind this result: the result is what I started with." in said
    assert "· cut-link     correct results first" in said
    assert "--seed 5" in said
    assert f"to repeat: frog collectives check --peer '{idle_peer}' --seed 5 --world 2\n" in said
    assert (keep / "results-2" / "rank_1" / "calls.tsv").read_text().startswith("all_reduce\t0\t/")
    assert main(words) == 2
    assert "the folder is not empty" in capsys.readouterr().err


def test_json_output_contains_the_same_findings(idle_peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--peer", idle_peer, "--world", "2", "--only", "results", "--only", "operations", "--exit-first", "--json"]
    assert main(["collectives", "check", *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["worlds"], found["passed"]) == ([2], False)
    (only,) = found["checks"]
    assert (only["check"], only["status"], only["finding"]) == ("results", "rejected", "not-reduced")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--world", "1"], "sizes from 2 to 8"),
        (["--world", "2,x"], "sizes from 2 to 8"),
        (["--world", "2,9"], "sizes from 2 to 8"),
        (["--only", "speed"], "'speed' is not one of results, "),
        (["--operations", "all_reduce,scan"], "'scan' is not one of all_reduce, "),
    ],
)
def test_invalid_options_are_rejected(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["collectives", "check", "--peer", "true", *words])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("peer", "said"), [("", "contains no command"), ("'", "No closing quotation")])
def test_invalid_peer_command_is_rejected(peer: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "check", "--peer", peer]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("language", "name"), [("python", "ring.py"), ("rust", "ring.rs")])
def test_example_prints_a_peer(language: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "example", language]) == 0
    assert capsys.readouterr().out == (EXAMPLES / name).read_text()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--world", "2,8"], {"world": (2, 8)}),
        (["--operations", "broadcast,all_gather"], {"operations": ("broadcast", "all_gather")}),
        (["--only", "ring", "--only", "large"], {"only": ["ring", "large"]}),
        (["--exit-first", "--json", "--seed", "0"], {"exit_first": True, "json": True, "seed": 0}),
        (["--keep", "there"], {"keep": Path("there")}),
    ],
)
def test_options_of_a_check_and_their_defaults(
    words: list[str], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("frog.measure.peers.check.check", lambda args: asked.append(vars(args)) or 3)
    assert main(["collectives", "check", "--peer", "my peer", *words]) == 3
    usual = {"world": None, "operations": ("all_reduce",), "only": [], "exit_first": False, "json": False}
    expected = {"peer": "my peer", "keep": None, "seed": None, **usual, **options}
    assert {name: asked[0][name] for name in expected} == expected
