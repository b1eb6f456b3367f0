"""Who waits for whom: from evidence to groups, and the groups as a picture and as text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from observe.diagnose.program.seen import evidence, rank
from observe.watch.hung_program import hung_program

from frog.core.runs.folder import RunFolder
from frog.observe.diagnose.waits import Seen, WaitingGroup, grouped, look_at_ranks, waits_of
from frog.observe.view.report import render_report
from frog.observe.view.waits_picture import columns, draw_waits, waits_text

HOSTILE = "<script>alert(1)</script>&\x1b[31m"
TWO = [
    WaitingGroup((0, 1, 2), "in all_reduce of 4 float", "a.py:5 (f)", (1,)),
    WaitingGroup((3,), "computes", "a.py:9 (g)"),
]
CYCLE = [WaitingGroup((0,), "in recv from rank 1", "", (1,)), WaitingGroup((1,), "in recv from rank 0", "", (0,))]


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", html)]


def test_ranks_that_do_the_same_are_one_group() -> None:
    seen = {
        0: Seen("in barrier", "a.py:1", frozenset([3])),
        1: Seen("in barrier", "a.py:1", frozenset([3])),
        2: Seen("in barrier", "a.py:2", frozenset([3, 9])),
        3: Seen("computes", "a.py:7"),
    }
    assert grouped(seen) == [
        WaitingGroup((0, 1), "in barrier", "a.py:1", (2,)),
        WaitingGroup((2,), "in barrier", "a.py:2", (2,)),
        WaitingGroup((3,), "computes", "a.py:7", ()),
    ]


def test_ranks_that_wait_for_none_have_no_picture() -> None:
    assert grouped({0: Seen("computes", ""), 1: Seen("in barrier", "", frozenset([7]))}) == []
    assert draw_waits([]) == ""


def test_rank_that_never_called_a_collective_is_waited_for(tmp_path: Path) -> None:
    folder = hung_program(tmp_path / "h")
    path = folder.path / "observed/attempt_0/rank_0/collectives.json"
    path.write_text(
        path.read_text().replace('"seq": 2, "op": "barrier", "done": false', '"seq": 1, "op": "x", "done": true')
    )
    status = folder.path / "observed/attempt_0/rank_0/status.json"
    status.write_text(status.read_text().replace('"enqueued": 2', '"enqueued": 1'))
    path.write_text(path.read_text().replace('"enqueued": 2', '"enqueued": 1'))
    found = waits_of(folder)
    assert [(group.ranks, group.what, group.place, group.waits_for) for group in found] == [
        ((0,), "waits outside of collectives", "prog.py:3", ()),
        ((1, 2, 3), "in all_reduce of 4 float", "prog.py:5", (0,)),
    ]


def test_rank_whose_record_ends_early_is_not_waited_for_if_its_count_shows_the_call() -> None:
    calls = [("all_reduce", 4, 1), ("all_reduce", 4, 2)]
    ranks = [rank(0, *calls, world=3, pending=1), rank(1, *calls[:1], world=3), rank(2, *calls[:1], world=3)]
    group = ranks[0].calls[0].group
    ranks[1].enqueued, ranks[2].enqueued = {group: 2}, {group: 1}
    assert look_at_ranks(evidence(*ranks))[0].awaited == {2}


def test_folder_without_evidence_has_no_waits(tmp_path: Path) -> None:
    (tmp_path / "r" / "observed").mkdir(parents=True)
    assert waits_of(RunFolder(tmp_path / "r")) == []


def test_picture_has_a_box_per_group_and_an_arrow_per_wait() -> None:
    for groups, arrows in ((TWO, 1), (CYCLE, 2)):
        wide, tall = svgs(draw_waits(groups))
        for svg in (wide, tall):
            assert len(svg.findall("rect")) == len(groups)
            assert len([path for path in svg.findall("path") if path.get("class") == "arrow"]) == arrows
            width, height = map(float, (svg.get("viewBox") or "").split()[2:])
            for box in svg.findall("rect"):
                right, bottom = (
                    float(box.get(a) or 0) + float(box.get(b) or 0) for a, b in (("x", "width"), ("y", "height"))
                )
                assert (right <= width, bottom <= height) == (True, True)
        assert float(tall.get("width") or 0) <= 370


def test_boxes_do_not_overlap() -> None:
    many = [WaitingGroup((n,), "in barrier", f"a.py:{n}", (5,)) for n in range(5)] + [
        WaitingGroup((5,), "computes", "")
    ]
    for svg in svgs(draw_waits(many)):
        boxes = [
            tuple(float(box.get(name) or 0) for name in ("x", "y", "width", "height")) for box in svg.findall("rect")
        ]
        for at, (x, y, width, height) in enumerate(boxes):
            for x2, y2, _, _ in boxes[at + 1 :]:
                assert abs(x - x2) >= width or abs(y - y2) >= height


def test_waiting_groups_stand_before_those_that_they_wait_for() -> None:
    assert columns(TWO, [0, 1]) == ([0], [1])
    awaited_first = [WaitingGroup((0,), "computes", ""), WaitingGroup((1, 2), "in barrier", "", (0,))]
    assert columns(awaited_first, [0, 1]) == ([1], [0])
    assert columns(CYCLE, [0, 1]) == ([0], [1])


def test_text_of_the_program_is_escaped() -> None:
    html = draw_waits([WaitingGroup((0,), HOSTILE, HOSTILE, (1,)), WaitingGroup((1,), HOSTILE, "")])
    assert "<script" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html


def test_text_names_ranks_places_and_who_is_waited_for() -> None:
    assert waits_text(TWO) == (
        "ranks 0, 1 and 2: are in all_reduce of 4 float at a.py:5 (f) and wait for rank 3\n"
        "rank 3: computes at a.py:9 (g)"
    )


def test_report_of_a_hang_has_the_picture(tmp_path: Path) -> None:
    html = render_report(hung_program(tmp_path / "h"))
    wide, tall = svgs(html)
    assert len(wide.findall("rect")) == len(tall.findall("rect")) == 2
    assert html.index("<svg") < html.index('class="places"')
