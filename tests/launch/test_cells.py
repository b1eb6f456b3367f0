"""Cells of code on living ranks: what users type, what they read, and what is kept over a restart. No processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from frog.core.errors import UsageError
from frog.launch.cells import cell_drawing, cell_text, variables_rank
from frog.launch.cells.cell_launcher import WorldSettings
from frog.launch.cells.cell_options import parse_line, split_ranks
from frog.launch.cells.cell_places import place_text, with_places
from frog.launch.cells.cell_world import CellResult, RankResult
from frog.launch.cells.messages import Answer, Call, CellError, TensorFacts
from frog.launch.cells.values_rank import describe
from frog.launch.cells.world_commands import _needs_more, _pieces
from frog.observe.view.palette import RANK_COLORS

# ---- what users type -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "ranks", "settings", "code"),
    [
        ("", None, None, ""),
        ("[0,2] --world 4", (0, 2), WorldSettings(nproc=4), ""),
        ("--nproc 3 x + 1", None, WorldSettings(nproc=3), "x + 1"),
        ("[1-3] x[0]", (1, 2, 3), None, "x[0]"),
        ("--nodes 2x2 --network 'rate=10mbit delay=5ms'", None, None, ""),
        ("--simulate-gpus=2 --world=2", None, WorldSettings(nproc=2, simulate_gpus=2), ""),
        ("x -- 1", None, None, "x -- 1"),
    ],
)
def test_line_of_a_magic_has_ranks_then_options_then_code(
    line: str, ranks: tuple[int, ...] | None, settings: WorldSettings | None, code: str
) -> None:
    options = parse_line(line)
    if "--network" in line:
        settings = WorldSettings(nodes=2, nproc=2, network="rate=10mbit delay=5ms")
    assert (options.ranks, options.settings, options.code) == (ranks, settings, code)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--wrold 3", "--wrold"),
        ("--world none", "none"),
        ("--world 0", "at least 1"),
        ("[0,a]", "'a' is not a rank"),
        ("[]", "names no rank"),
        ("--nodes 1:2x2", "stay the same"),
        ("--network rate=10mbit", "several nodes"),
    ],
)
def test_wrong_line_is_an_error_with_a_hint(line: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_line(line)


def test_ranks_in_brackets_end_where_the_code_begins() -> None:
    assert split_ranks("[0, 2] print([1])") == ((0, 2), "print([1])")
    assert split_ranks("print([1])") == (None, "print([1])")


@pytest.mark.parametrize(
    ("typed", "needs_more"),
    [
        ("x = 1", False),
        ("for i in range(2):", True),
        ("for i in range(2):\n    i", True),
        ("for i in range(2):\n    i\n", False),
        ("f(1,", True),
        ("[0,1] for i in x:", True),
        ("1 +", False),
    ],
)
def test_prompt_waits_for_the_end_of_a_block(typed: str, needs_more: bool) -> None:
    assert _needs_more(typed) == needs_more


def test_standard_input_is_split_into_statements_and_commands() -> None:
    text = "x = 1\nfor i in x:\n    i\n:draw\n[0,2] y = 2\n[1, 2]\n[0] for i in y:\n    i\nz\n"
    expected = ["x = 1", "for i in x:\n    i", ":draw", "[0,2] y = 2", "[1, 2]", "[0] for i in y:\n    i", "z"]
    assert list(_pieces(text)) == expected


# ---- what users read -------------------------------------------------------------------------------------------------


def answer(rank: int, value: str | None = None, digest: str | None = None, error: CellError | None = None) -> Answer:
    tensors = [TensorFacts(place="", digest=digest)] if digest else []
    return Answer(number=1, rank=rank, value=value, tensors=tensors, error=error)


def result_of(*ranks: RankResult, world_size: int | None = None) -> CellResult:
    return CellResult(3, world_size or len(ranks), {own.rank: own for own in ranks})


def test_ranks_with_equal_output_are_folded() -> None:
    ranks = [RankResult(rank, "done", "hello\n", answer(rank, "1" if rank != 2 else "2")) for rank in range(4)]
    assert cell_text.as_text(result_of(*ranks)).splitlines() == [
        "ranks 0, 1, 3 │ hello",
        "ranks 0, 1, 3 │ 1",
        "rank 2        │ hello",
        "rank 2        │ 2",
    ]


def test_tensors_are_compared_between_the_ranks() -> None:
    def shown(*digests: str) -> list[str]:
        ranks = [RankResult(rank, "done", "", answer(rank, "t", digest)) for rank, digest in enumerate(digests)]
        return cell_text.agreements(result_of(*ranks))

    assert shown("a", "a", "a") == ["equal on all ranks"]
    assert shown("a", "b", "a") == ["different: ranks 0, 2 | rank 1"]
    assert shown("a", "b") == ["different on each rank"]


def test_tensors_about_which_the_same_is_said_share_a_line() -> None:
    tensors = [TensorFacts(place=f"[{number}]", digest="abb"[number]) for number in range(3)]
    own = Answer(number=1, rank=0, tensors=tensors)
    other = Answer(number=1, rank=1, tensors=[TensorFacts(place=f"[{n}]", digest="abc"[n]) for n in range(3)])
    result = result_of(RankResult(0, "done", "", own), RankResult(1, "done", "", other))
    assert cell_text.agreements(result) == ["[0], [1]: equal on all ranks", "[2]: different on each rank"]


def test_tensors_that_differ_are_not_folded_if_their_text_is_equal() -> None:
    ranks = [RankResult(rank, "done", "", answer(rank, "mean 0.5", str(rank))) for rank in range(2)]
    assert [group.ranks for group in cell_text.groups_of(result_of(*ranks))] == [[0], [1]]


def test_errors_are_named_by_rank_with_the_cells_lines() -> None:
    error = CellError(type="ValueError", message="bad", lines=["cell 3, line 2", "    f()"])
    ranks = [RankResult(0, "done", "", answer(0)), RankResult(1, "failed", "", answer(1, error=error))]
    text = cell_text.as_text(result_of(*ranks))
    assert text.splitlines() == ["rank 1 │ cell 3, line 2", "rank 1 │     f()", "rank 1 │ ValueError: bad"]


def test_ranks_have_the_colors_of_reports_in_light_and_dark_notebooks() -> None:
    assert cell_text.COLORS == RANK_COLORS
    assert cell_text.color_of(9) == f"var(--frog-rank-1,{RANK_COLORS[1][0]})"
    assert f"--frog-rank-1:{RANK_COLORS[1][1]}" in cell_text.STYLE.partition("body.vscode-dark .frog-ranks")[2]


def test_html_escapes_what_ranks_print() -> None:
    shown = cell_text.as_html(result_of(RankResult(0, "done", "<b>&", answer(0))))
    assert "&lt;b&gt;&amp;" in shown
    assert "<b>" not in shown


def test_cards_stand_in_halves_and_a_running_cell_shows_the_end_of_its_output() -> None:
    lines = "".join(f"step {number}\n" for number in range(2000))
    shown = cell_text.live_html(dict.fromkeys(range(4), lines), 4)
    assert shown.count('class="frog-row"') == 3
    assert shown.count("\nstep 1999<") == 4
    assert "step 1000\n" not in shown


def test_output_is_shown_as_a_terminal_leaves_it() -> None:
    assert cell_text.plain("\x1b[31mred\x1b[0m\n 10%\r 50%\r100%\nend\r\n") == "red\n100%\nend"


def test_places_of_cells_are_named_by_number_and_line() -> None:
    path = "/tmp/frog-world-ab1/cells/cell_12_2.py"
    assert place_text(path, 4) == "cell 12, line 4"
    assert with_places(f"waits at {path}:4 in step; at ../x/frog-world-c/cells/cell_1.py:2 in <module>") == (
        "waits at cell 12, line 4 in step; at cell 1, line 2"
    )


# ---- pictures --------------------------------------------------------------------------------------------------------


def call(start_ms: int, end_ms: int | None, **facts: object) -> Call:
    whole: dict[str, object] = {
        "op": "all_reduce",
        "seq": 1,
        "payload_bytes": 4096,
        "blocks": True,
        "line": "cell 3, line 2",
        **facts,
    }
    end_ns = None if end_ms is None else end_ms * 1_000_000
    return Call(start_ns=start_ms * 1_000_000, end_ns=end_ns, **whole)  # type: ignore[arg-type]


def drawn(*calls: Sequence[Call], world_size: int | None = None) -> CellResult:
    ranks = [
        RankResult(rank, "done", "", Answer(number=1, rank=rank, calls=list(own))) for rank, own in enumerate(calls)
    ]
    return result_of(*ranks, world_size=world_size)


def test_rank_that_comes_first_waits_for_the_last() -> None:
    (meeting,) = cell_drawing.meetings_of(drawn([call(100, 430)], [call(400, 430)]))
    assert (meeting.waited_ns(0), meeting.waited_ns(1)) == (300_000_000, 0)
    described = cell_drawing.describe(meeting)
    assert described == "all_reduce, 4.0 KiB at cell 3, line 2: 330.0 ms; rank 0 waited 300.0 ms for rank 1"


def test_rank_that_does_not_block_does_not_wait() -> None:
    (meeting,) = cell_drawing.meetings_of(drawn([call(100, None, blocks=False)], [call(400, 430)]))
    assert cell_drawing.describe(meeting) == "all_reduce, 4.0 KiB at cell 3, line 2: 330.0 ms"


def test_collective_that_a_rank_never_entered_is_named() -> None:
    result = drawn([call(100, 2100)], [], world_size=2)
    (meeting,) = cell_drawing.meetings_of(result)
    assert meeting.missing == (1,)
    assert "rank 0 waited 2.0 s; rank 1 never entered it" in cell_drawing.as_text(result)
    assert "never entered it" in cell_drawing.as_svg(result)


def test_messages_are_matched_by_their_ends_and_order() -> None:
    send = [call(10 * n, 10 * n + 1, op="send", p2p=True, peer=1) for n in range(2)]
    receive = [call(10 * n + 5, 10 * n + 6, op="recv", p2p=True, peer=0) for n in range(2)]
    meetings = cell_drawing.meetings_of(drawn(send, receive))
    assert [(meeting.label, sorted(meeting.calls), meeting.missing) for meeting in meetings] == [
        ("message 0 to 1, 4.0 KiB", [0, 1], ()),
        ("message 0 to 1, 4.0 KiB", [0, 1], ()),
    ]


def test_collectives_of_a_subgroup_wait_only_for_its_members() -> None:
    result = drawn([call(0, 5, members=[0, 1])], [call(1, 5, members=[0, 1])], [])
    assert [meeting.missing for meeting in cell_drawing.meetings_of(result)] == [()]


# ---- values ----------------------------------------------------------------------------------------------------------


def test_small_tensors_are_shown_and_large_ones_summarised() -> None:
    assert describe(torch.tensor([[1.0, 0.25]]))[0] == "tensor (1, 2) float32 cpu: [[1, 0.25]]"
    assert describe(torch.arange(100.0))[0] == "tensor (100) float32 cpu: min 0, mean 49.5, max 99"
    large = torch.ones(20)
    large[3] = float("nan")
    assert describe(large)[0].endswith("min 1, mean 1, max 1; 1 of 20 not finite")
    assert describe(torch.ones(20, dtype=torch.bool))[0].endswith("20 of 20 true")


def test_digests_differ_with_every_byte_shape_and_type() -> None:
    def digest(tensor: torch.Tensor) -> str | None:
        return describe(tensor)[1][0].digest

    one = torch.arange(6.0)
    assert digest(one) == digest(one.clone())
    others = [one.reshape(2, 3), one.double(), one + torch.finfo(torch.float32).eps, one.int()]
    assert len({digest(each) for each in (one, *others)}) == 5
    assert digest(torch.ones(2, 2, dtype=torch.bfloat16).t()) is not None
    assert digest(torch.empty(3, device="meta")) is None


def test_tensors_inside_containers_have_places() -> None:
    text, tensors = describe({"w": torch.zeros(2), "more": [torch.ones(1)]})
    assert [fact.place for fact in tensors] == ["w", "more[0]"]
    assert "'w': tensor (2) float32 cpu: [0, 0]" in text


def test_broken_repr_does_not_break_the_cell() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert describe(Broken())[0] == "Broken (its repr failed: ValueError: no)"


# ---- variables over a restart ----------------------------------------------------------------------------------------

CELL = "import math\n\nclass Point:\n    x = 1\n\ny = 3\n\ndef double(a, b=y):\n    return 2 * a\n"


def test_definitions_keep_their_lines() -> None:
    kept = variables_rank.definitions(CELL)
    lines = [number for number, line in enumerate(kept.splitlines(), start=1) if line]
    assert lines == [1, 3, 4, 8, 9]
    assert variables_rank.definitions("x = 1") == ""


def test_optimizer_still_refers_to_its_model_after_a_restart(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before: dict[str, object] = {"model": model, "optimizer": optimizer, "y": 3, "lines": (n for n in range(2))}
    lost = variables_rank.save(before, tmp_path / "kept.pt")
    assert len(lost) == 1
    assert lost[0].startswith("lines (a generator")

    after: dict[str, object] = {}
    assert variables_rank.load(after, tmp_path / "kept.pt", [("cell_1.py", CELL.replace("y = 3", ""))]) == []
    kept_model, kept_optimizer = after["model"], after["optimizer"]
    assert isinstance(kept_model, torch.nn.Linear)
    assert isinstance(kept_optimizer, torch.optim.SGD)
    assert kept_optimizer.param_groups[0]["params"][0] is kept_model.weight
    double = after["double"]  # its default value was defined by a variable
    assert callable(double)
    assert double(4) == 8


def test_rank_without_saved_variables_gets_its_definitions(tmp_path: Path) -> None:
    after: dict[str, object] = {}
    lost = variables_rank.load(after, tmp_path / "none.pt", [("cell_1.py", "def one():\n    return 1\n")])
    assert lost == []
    assert "one" in after
    lost = variables_rank.load(
        after, tmp_path / "none.pt", [("cells/cell_2.py", "def two(a=missing):\n    return 1\n")]
    )
    assert lost == ["definitions of cell_2 (NameError: name 'missing' is not defined)"]
