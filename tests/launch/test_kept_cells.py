"""What people read and see of cells: results, pictures of collectives, values and notes; kept_cells.json has it.

Other tests name single lines. Here no word and no coordinate may change unnoticed. After a change that is meant:
FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/launch/test_kept_cells.py, and read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.core.errors import LaunchError, UsageError
from frog.launch.cells import cell_drawing, cell_text
from frog.launch.cells.calls_rank import _call, _facts, _owner, _timed_call
from frog.launch.cells.cell_launcher import WorldSettings
from frog.launch.cells.cell_magics import _what_failed
from frog.launch.cells.cell_options import parse_line
from frog.launch.cells.cell_world import CellResult, CellWorld, RankResult, _at, _kept_and_lost, _Run
from frog.launch.cells.cell_world import _bounded as bounded_output
from frog.launch.cells.messages import Answer, Call, CellError, Request, TensorFacts, receive_request, send
from frog.launch.cells.values_rank import _digest, describe
from frog.launch.cells.world_commands import LiveLines, Prompt, _needs_more, _pieces

KEPT = Path(__file__).with_name("kept_cells.json")
REWRITE = "FROG_REWRITE_GOLDEN" in os.environ
MS = 1_000_000


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if REWRITE:
        KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


def compare(name: str, found: Any, kept: dict[str, Any]) -> None:
    found = json.loads(json.dumps(found))
    if REWRITE:
        kept[name] = found
    assert found == kept[name], "if the change is meant, rewrite kept_cells.json: see above"


# ---- results ---------------------------------------------------------------------------------------------------------


def answer(
    rank: int, value: str | None = None, error: CellError | None = None, answered: int = 1, **facts: Any
) -> Answer:
    return Answer(number=answered, rank=rank, value=value, error=error, **facts)


def result_of(*ranks: RankResult, world_size: int = 0, **facts: Any) -> CellResult:
    return CellResult(7, world_size or len(ranks), {own.rank: own for own in ranks}, **facts)


BAD = CellError(type="ValueError", message="bad\nvery bad", lines=["cell 7, line 2", "    f()", "cell 3, line 1, in f"])
LOST = CellError(type="RuntimeError", message="Connection closed by peer [::1]", lines=["cell 7, line 1"])
STOP = CellError(type="KeyboardInterrupt", lines=["cell 7, line 3"], is_interrupt=True)
EMPTY = CellError(type="AssertionError", lines=["cell 7, line 4"])


def facts(*digests: str | None) -> list[TensorFacts]:
    return [TensorFacts(place=("", " w ", "b")[at], digest=digest) for at, digest in enumerate(digests)]


RESULTS: dict[str, CellResult] = {
    "nothing": result_of(*(RankResult(rank, "done", "", answer(rank)) for rank in range(2)), duration_s=0.04),
    "one rank": result_of(RankResult(0, "done", "a\nb\n", answer(0, "1\n2")), duration_s=99.96),
    "all equal": result_of(
        *(RankResult(rank, "done", "", answer(rank, "t", tensors=facts("a", "b"))) for rank in range(3)),
        duration_s=100.0,
        notes=["interrupted: the ranks keep their variables"],
    ),
    "some ranks": result_of(
        *(
            RankResult(rank, "done", f"{rank // 3}\n", answer(rank, "t", tensors=facts("a", None)))
            for rank in (1, 2, 4)
        ),
        world_size=6,
    ),
    "tensor of one rank": result_of(
        RankResult(0, "done", "", answer(0, "t", tensors=facts("a", "b"))),
        RankResult(1, "done", "", answer(1, "t", tensors=facts("a"))),
        RankResult(2, "failed", "", answer(2, "t", BAD, tensors=facts("c"))),
    ),
    "failed": result_of(
        RankResult(0, "failed", "before\n", answer(0, error=BAD)),
        RankResult(1, "failed", "", answer(1, error=EMPTY)),
        RankResult(2, "interrupted", "", answer(2, error=STOP)),
        RankResult(3, "interrupted", "", None),
    ),
    "hang": result_of(
        RankResult(0, "hung", "", answer(0, error=LOST)),
        RankResult(1, "hung", "", None),
        RankResult(2, "done", "", answer(2)),
        hang="hang: ranks 0, 1 wait for rank 2\n  rank 2: has finished the cell",
    ),
    "died": result_of(
        RankResult(0, "failed", "", answer(0, error=LOST)),
        RankResult(1, "died", "last words\n", None),
        RankResult(2, "failed", "", answer(2, error=BAD)),
        notes=["rank 1 ended: the world was started again", "lost on rank 1: x"],
    ),
    "lost its peer alone": result_of(
        RankResult(0, "failed", "", answer(0, error=LOST)), RankResult(1, "done", "", answer(1))
    ),
    "many ranks": result_of(*(RankResult(rank, "done", "x", answer(rank, str(rank // 9))) for rank in range(20))),
}


@pytest.mark.parametrize("name", RESULTS)
def test_no_word_of_a_result_changes_unnoticed(name: str, kept: dict[str, Any]) -> None:
    result = RESULTS[name]
    shown = {
        "text": cell_text.as_text(result).splitlines(),
        "at a prompt": cell_text.as_text(result, fold_name=True).splitlines(),
        "page": cell_text.as_html(result).removeprefix(cell_text.STYLE).split("</div>"),
        "summary": cell_text.summary(result),
        "failed": [result.failed, _what_failed(result)],
    }
    compare(f"result: {name}", shown, kept)


def test_no_word_of_a_running_cell_changes_unnoticed(kept: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {0: "", 1: "\x1b[1ma\x1b[0m\n 1%\r 9%", 2: "b & c\n"}
    live = LiveLines()
    live.show(outputs)
    live.show({0: "x\n\ny\nz", 1: f"{outputs[1]}\nend\n", 2: outputs[2]})
    shown = {
        "text": cell_text.live_text(outputs),
        "page": cell_text.live_html(outputs, 3).removeprefix(cell_text.STYLE).split("</div>"),
        "without output": [cell_text.live_text({}, "starts"), cell_text.live_html({}, 0, "<").split("</style>")[1]],
        "at a prompt": capsys.readouterr().out.splitlines(),
    }
    compare("running", shown, kept)


# ---- pictures --------------------------------------------------------------------------------------------------------


def call(start_ms: float, end_ms: float | None, **facts: Any) -> Call:
    end_ns = None if end_ms is None else round(end_ms * MS)
    own = {"op": "all_reduce", "seq": 1, "blocks": True, **facts}
    return Call(start_ns=10**18 + round(start_ms * MS), end_ns=end_ns and 10**18 + end_ns, **own)


def calls_of(*calls: list[Call], world_size: int = 0) -> CellResult:
    ranks = (RankResult(rank, "done", "", answer(rank, calls=own)) for rank, own in enumerate(calls))
    return result_of(*ranks, world_size=world_size or len(calls))


LINE = {"line": "cell 7, line 2", "payload_bytes": 4096}
PICTURES: dict[str, CellResult] = {
    "no collective": calls_of([], []),
    "waits": calls_of([call(0, 50, **LINE)], [call(40, 50, payload_bytes=4096)], [call(1, 50.5, **LINE)]),
    "short waits": calls_of([call(0, 3, **LINE)], [call(1, 3, **LINE)], [call(0.0005, 3, **LINE)]),
    "shorter waits": calls_of([call(0, 3, **LINE)], [call(0.999999, 3, **LINE)]),
    "long": calls_of(
        [call(0, 1500, op="barrier"), call(1600, 1601, op="broadcast", seq=2, payload_bytes=1)],
        [call(1000, 1500, op="barrier"), call(1600, 1601, op="broadcast", seq=2, payload_bytes=8)],
    ),
    "never entered": calls_of([call(5, None, blocks=False, **LINE)], [], [call(7, 2007, **LINE)], [], world_size=4),
    "inside a backward pass": calls_of(
        [call(0, None, blocks=False, seq=n, payload_bytes=2048) for n in (1, 2)],
        [call(2, None, blocks=False, seq=n, payload_bytes=2048) for n in (1, 2)],
    ),
    "groups": calls_of(
        [call(0, 2, group="1", members=[0, 1]), call(3, 4, group="2", members=[0, 2])],
        [call(1, 2, group="1", members=[0, 1])],
        [call(3.5, 4, group="2", members=[0, 2])],
    ),
    "messages": calls_of(
        [call(0, 1, op="send", p2p=True, peer=1), call(2, None, op="isend", p2p=True, peer=1, blocks=False)],
        [call(0.5, 1, op="recv", p2p=True, peer=0), call(2.5, 3, op="recv", p2p=True, peer=0)],
        [call(4, 9, op="irecv", p2p=True, peer=0), call(5, 9, op="recv", p2p=True)],
    ),
    "many": calls_of(*([call(10 * n, 10 * n + 5 + rank, seq=n) for n in range(62)] for rank in range(2))),
    "as many as fit": calls_of([call(10 * n, 10 * n + 5, seq=n) for n in range(60)]),
    "different operations": calls_of([call(0, 9, op="barrier")], [call(1, 9, op="all_gather")]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_no_coordinate_of_a_picture_changes_unnoticed(name: str, kept: dict[str, Any]) -> None:
    result = PICTURES[name]
    text, svg = (
        cell_drawing.as_text(result).splitlines(),
        cell_drawing.as_svg(result).removeprefix(cell_text.STYLE).split("><"),
    )
    if len(svg) > 200:
        svg = [*svg[:40], *svg[-100:]]
    compare(f"picture: {name}", {"text": text, "svg": svg, "summary": cell_text.summary(result)}, kept)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(0, "0 µs"), (999_499, "999 µs"), (MS, "1.0 ms"), (999_900_000, "999.9 ms"), (10**9, "1.0 s")],
)
def test_durations_have_a_unit_that_fits(duration_ns: int, text: str) -> None:
    assert cell_drawing.time_text(duration_ns) == text


# ---- values ----------------------------------------------------------------------------------------------------------


def _values() -> dict[str, Any]:
    wide = torch.arange(26.0).reshape(2, 13)
    wrong = wide.clone()
    wrong[0, :3] = torch.tensor([float("inf"), float("nan"), -float("inf")])
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    return {
        "twelve numbers": torch.arange(12),
        "thirteen numbers": torch.arange(13),
        "no dimension": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(wide),
        "not finite": wrong,
        "nothing finite": torch.full((13,), float("nan")),
        "complex": torch.complex(wide, wide),
        "bool": torch.tensor([True, False] * 8),
        "half": torch.linspace(-1, 1, 21, dtype=torch.float16),
        "meta": torch.empty(3, device="meta"),
        "module": model,
        "list of twenty": [torch.zeros(1)] * 20,
        "list of twenty-one": [torch.zeros(1)] * 21,
        "nested": {"a": {"b": [wide, 1], 3: torch.ones(1, 2)}, "m": (model[0],)},
        "without tensors": {"a": 1, "b": "x"},
        "empty list": [],
        "text": "two\nlines",
        "word": "line",
        "forty lines": "x\n" * 40,
        "forty-one lines": "x\n" * 41,
        "most characters": "y\n" + "x" * 3998,
        "more characters": "y\n" + "x" * 3999,
        "long table": {f"key {number}": number for number in range(30)},
    }


def test_no_word_of_a_value_changes_unnoticed(kept: dict[str, Any]) -> None:
    found = {}
    for name, value in _values().items():
        text, tensors = describe(value)
        found[name] = [text, [[fact.place, fact.digest is not None] for fact in tensors]]
    compare("values", found, kept)


def test_tensors_of_more_than_a_gibibyte_are_not_compared() -> None:
    half = torch.zeros(1).expand((1 << 27) + 1)
    assert _digest([half, half]) is None
    assert _digest([torch.zeros(1).expand(1 << 10)] * 2) == _digest([torch.zeros(1 << 10)] * 2)


# ---- a world that does not run ---------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[CellWorld]:
    found = CellWorld(WorldSettings(nodes=2, nproc=2, simulate_gpus=2, network="rate=1mbit"))
    yield found
    found.stop()
    assert not found._root.exists()


def test_no_word_about_a_world_changes_unnoticed(world: CellWorld, kept: dict[str, Any]) -> None:
    world.pids, world.names = {1: 20, 0: 10}, {0: ["x", "y"], 1: [], 2: ["x", "y"], 3: []}
    settings = (WorldSettings(nproc=1), WorldSettings(nodes=2, nproc=1), WorldSettings())
    compare("world", [cell_text.world_text(world).splitlines(), *map(str, settings)], kept)


def test_files_of_cells_have_their_number_also_when_it_comes_again(world: CellWorld) -> None:
    world._number = 4
    names = [world._write_cell(f"{n}").name for n in range(3)]
    assert names == ["cell_4.py", "cell_4_2.py", "cell_4_3.py"]


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([[call(0, 1)], [call(0, 1)], [call(0, 1)], [call(0, 1)]], ""),
        ([[call(0, 1)], [call(0, 1)], [call(0, 1)], []], "(rank 0 1, rank 1 1, rank 2 1, rank 3 0)"),
        ([[call(0, 1)], [call(0, 1)] * 2, [call(0, 1)], [call(0, 1)]], "(rank 0 1, rank 1 2, rank 2 1, rank 3 1)"),
        ([[call(0, 1, members=[0, 1])], [call(0, 1, members=[0, 1])], [], []], ""),
        ([[call(0, 1, members=[0, 1])], [], [], []], "(rank 0 1, rank 1 0)"),
        ([[call(0, 1, p2p=True)], [], [], []], ""),
        ([[call(0, 1, group="2")], [], [], []], "(rank 0 1, rank 1 0, rank 2 0, rank 3 0)"),
    ],
    ids=str,
)  # fmt: skip
def test_ranks_that_entered_different_numbers_of_collectives_get_a_new_group(
    calls: list[list[Call]], why: str, world: CellWorld, tmp_path: Path
) -> None:
    said = _Run(world, calls_of(*calls), tmp_path, None)._unequal()
    assert said == (f"the ranks entered different numbers of collectives {why}" if why else "")


def test_rank_that_has_destroyed_its_group_gets_a_new_one(world: CellWorld, tmp_path: Path) -> None:
    gone = result_of(RankResult(0, "done", "", answer(0)), RankResult(1, "done", "", answer(1, in_group=False)))
    assert _Run(world, gone, tmp_path, None)._unequal() == "a rank has destroyed its process group"


def test_how_ranks_have_ended_a_cell_is_said_of_those_that_wait_no_longer(world: CellWorld, tmp_path: Path) -> None:
    run = _Run(world, RESULTS["failed"], tmp_path, None)
    run.waiting = {2, 3}
    assert run._finished() == {
        0: "failed with ValueError at cell 3, line 1, in f",
        1: "failed with AssertionError at cell 7, line 4",
    }
    run = _Run(world, RESULTS["nothing"], tmp_path, None)
    run.waiting = {1}
    assert run._finished() == {0: "has finished the cell"}
    assert _at(CellError(type="E")) == ""


def test_kept_and_lost_variables_are_named_once(kept: dict[str, Any]) -> None:
    names = {0: ["a", "b", "g"], 1: ["a", "b"], 2: ["a", "b"], 3: []}
    saved = {0: answer(0, lost=["g (a generator: cannot pickle)"]), 1: answer(1), 3: answer(3)}
    loaded = {
        0: answer(0, names=["b", "a"]),
        1: answer(1, names=["a", "b"]),
        2: answer(2, lost=["definitions of cell_1 (NameError: no)"]),
        3: answer(3),
    }
    compare("kept and lost", _kept_and_lost(names, saved, loaded), kept)


def test_output_is_cut_at_its_beginning() -> None:
    assert bounded_output("x" * 200_000) == "x" * 200_000
    assert bounded_output("ab" + "x" * 200_000) == "... 2 earlier characters are not shown ...\n" + "x" * 200_000


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_no_fact_of_a_call_changes_unnoticed(kept: dict[str, Any]) -> None:
    """Entries of torch's recorder, with the timed call that they were entered in, or without one."""
    head = {"process_group": ["9999", "default_pg"], "collective_seq_id": 4, "p2p_seq_id": 2, "retired": True}
    entries: dict[str, dict[str, Any]] = {
        "all_reduce": {"profiling_name": "gloo:all_reduce", "input_sizes": [[3, 5]], "input_dtypes": ["BFloat16"]},
        "two tensors": {"profiling_name": "gloo:x", "input_sizes": [[2], [3, 2]], "input_dtypes": ["Long", "Float"]},
        "no tensor": {"profiling_name": "barrier", "input_sizes": [], "retired": False},
        "message": {"profiling_name": "gloo:send 0->1", "is_p2p": True, "input_sizes": [[4]], "input_dtypes": ["Byte"]},
    }
    noted: dict[str, Any] = {
        "op": "reduce",
        "start": 80,
        "end": 120,
        "line": "cell 1, line 2",
        "bytes": 7,
        "shape": "int8 (7)",
    }
    owners: dict[str, list[dict[str, Any]]] = {
        "alone": [],
        "timed": [{**noted, "start": 1, "end": 99}, noted],
        "still open": [{**noted, "end": None, "peer": 3}],
        "asynchronous": [{**noted, "later": True}],
        "failed": [{**noted, "failed": True}],
        "objects": [{**noted, "op": "broadcast_object_list"}],
        "later": [{**noted, "start": 101}],
        "earlier": [{**noted, "end": 99}],
        "same moment": [{**noted, "start": 100, "end": 100}],
    }
    found = {}
    for name, facts in entries.items():
        for how, timed in owners.items():
            entry = {"time_created_ns": 100, **head, **facts}
            made = _call(entry, _owner(entry, timed))
            found[f"{name}, {how}"] = [str(made), [call.get("used", False) for call in timed]]
    for how, timed in owners.items():
        found[f"without a recorder, {how}"] = [str(_timed_call(call, 5)) for call in timed]
    found["send without a recorder"] = [str(_timed_call({**noted, "op": "isend", "peer": 1}, 0))]
    compare("calls", found, kept)


@pytest.mark.parametrize(
    ("name", "args", "options", "facts"),
    [
        ("all_reduce", (torch.zeros(2, 3),), {}, {"bytes": 24, "shape": "float32 (2, 3)"}),
        ("barrier", (), {}, {}),
        ("send", (torch.zeros(2, dtype=torch.int8), 3), {}, {"bytes": 2, "shape": "int8 (2,)", "peer": 3}),
        ("recv", (torch.zeros(1),), {"src": 2}, {"bytes": 4, "shape": "float32 (1,)", "peer": 2}),
        ("irecv", (torch.zeros(1),), {}, {"bytes": 4, "shape": "float32 (1,)", "peer": None}),
        ("broadcast", (), {"tensor": torch.zeros(1), "src": 0}, {"bytes": 4, "shape": "float32 (1,)"}),
    ],
)
def test_size_and_peer_of_a_call_are_those_of_its_arguments(
    name: str, args: tuple[Any, ...], options: dict[str, Any], facts: dict[str, Any]
) -> None:
    assert _facts(name, args, options) == facts


# ---- what users type -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "--threads 2 --allow-errors x",
        "--allow-errors",
        "--network='rate=1mbit delay=2ms' --nodes 2x2",
        '--nodes=2x3 --network "rate=1mbit delay=2ms" x = 1',
        "[0:2, 5 5] --nproc=8 f('--world 3')",
        "[3]",
        "--simulate-gpus 4",
        "--world 4 --simulate-gpus 2  x",
        "  x --world 3",
    ],
)
def test_no_option_of_a_cell_is_read_differently_unnoticed(line: str, kept: dict[str, Any]) -> None:
    compare(f"line: {line}", str(parse_line(line)), kept)


def test_no_statement_of_a_text_is_split_differently_unnoticed(kept: dict[str, Any]) -> None:
    texts = {
        "blank lines": "\n\nx = 1\n\n\ny = (\n  2,\n)\n\n",
        "ranks of a block": "[0,1] for i in x:\n    i\n\n    j\nz = 1\n",
        "ranks of one line": "[1] x = 1\ny = 2\n",
        "list alone": "[1, 2][0]\n[0]\n",
        "commands": ":rank 0\nx\n:draw\n  :help\n",
        "mistake": "x = 1\ny = = 2\n",
        "ranks and a mistake": "[0] 1 +\nx\n",
        "ranks without code": "[0]  \nx\n",
    }
    compare("pieces", {name: list(_pieces(text)) for name, text in texts.items()}, kept)
    typed = (
        "a = 1\nb = 2",
        "a = 1\nfor x in b:\n    c",
        "a = 1\nfor x in b:\n    c\n",
        "a = (",
        "x = '''",
        "a\nif b:\n\tc",
    )
    compare("needs more", {text: _needs_more(text) for text in typed}, kept)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [(None, "[0-3]"), ((0, 1), "[0,1]"), ((1, 2, 3), "[1-3]"), ((0, 1, 3), "[0,1,3]"), ((2,), "[2]")],
)
def test_prompt_names_its_ranks(ranks: tuple[int, ...] | None, name: str, world: CellWorld) -> None:
    prompt = Prompt(world)
    prompt.ranks = ranks
    assert prompt._name() == name


def test_commands_of_the_prompt_answer(
    world: CellWorld, kept: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = Prompt(world)

    def said(line: str) -> list[Any]:
        goes_on = prompt.command(line)
        out, err = capsys.readouterr()
        return [goes_on, prompt.failed, prompt.ranks, out, err]

    lines = (
        ":help",
        ":info",
        ":draw",
        ":rank 1,3",
        ":ranks",
        ":rank [3]",
        ":rank all",
        ":q",
        ":quit",
        ":rank 4",
        ":no",
    )
    compare("commands", {line: said(line) for line in lines}, kept)


def test_ranks_outside_a_world_are_an_error(world: CellWorld) -> None:
    chosen: Callable[..., list[int]] = world._chosen
    assert (chosen(None), chosen([]), chosen([3, 0, 3])) == ([0, 1, 2, 3], [0, 1, 2, 3], [0, 3])
    for ranks in ([4], [0, -1]):
        with pytest.raises(UsageError, match=f"rank {ranks[-1]}: the world has ranks 0 to 3"):
            chosen(ranks)
    with pytest.raises(UsageError, match="no world is running"):
        world.get("x")


# ---- a world whose ranks are pipes -----------------------------------------------------------------------------------


@pytest.fixture
def ends(world: CellWorld) -> Iterator[dict[int, Connection]]:
    """Return the other ends of the connections to four ranks."""
    found = {}
    for rank in range(4):
        world._connections[rank], found[rank] = Pipe()
    (world.folder / "output").mkdir(parents=True)
    yield found
    for end in found.values():
        end.close()


def test_only_answers_to_a_request_count_and_ranks_that_are_stuck_get_little_time(
    world: CellWorld, ends: dict[int, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frog.launch.cells.cell_world._STUCK_S", 0.0)
    for number in (4, 5):
        send(ends[0], answer(0, names=[str(number)], answered=number))
    ends[1].close()
    world._connections.pop(3).close()
    requests = {rank: Request(act="save", number=5, path=str(rank)) for rank in range(4)}
    found = world._ask(requests, 1e9, optional={2})
    assert {rank: own.names for rank, own in found.items()} == {0: ["5"]}
    assert world._connections.keys() == {0, 2}
    assert not world.is_running
    assert [receive_request(ends[rank]).path for rank in (0, 2)] == ["0", "2"]
    assert world._ask({}, 1e9) == {}


def test_values_of_all_ranks_come_in_the_order_of_the_ranks(
    world: CellWorld, ends: dict[int, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (2, 0):
        torch.save(torch.full((2,), rank), world.folder / f"value_{rank}.pt")
        send(ends[rank], answer(rank, answered=-2))
    values = world.get("x", [2, 0])
    assert [(rank, str(value)) for rank, value in values.items()] == [(0, "tensor([0, 0])"), (2, "tensor([2, 2])")]
    asked = [receive_request(ends[rank]) for rank in (0, 2)]
    assert [(own.act, own.name, Path(own.path).name) for own in asked] == [
        ("get", "x", f"value_{n}.pt") for n in (0, 2)
    ]
    assert not any(world.folder.glob("value_*"))

    send(ends[1], answer(1, error=CellError(type="NameError", message="no x"), answered=-2))
    with pytest.raises(UsageError, match="rank 1: NameError: no x"):
        world.get("x", [1])
    (world.folder / "value_3.pt").write_bytes(b"damaged")
    send(ends[3], answer(3, answered=-2))
    with pytest.raises(UsageError, match="the value cannot be loaded here: "):
        world.get("x", [3])
    monkeypatch.setattr("frog.launch.cells.cell_world._GET_S", 0.0)
    with pytest.raises(LaunchError, match="ranks 1, 2 did not answer"):
        world.get("x", [1, 2])


def test_output_is_read_from_where_the_last_cell_ended(world: CellWorld, ends: dict[int, Connection]) -> None:
    path = world._output_file(1)
    path.write_bytes(b"old")
    world._skip_output(1)
    path.write_bytes(b"old\xffnew")
    assert world._read_output(1, 4) == "\ufffd"
    assert (world._read_output(1, 3), world._read_output(1), world._read_output(1)) == ("", "new", "")
    assert world._read_output(2) == ""


def test_new_process_group_keeps_variables_and_names_those_of_the_old_one(
    world: CellWorld, ends: dict[int, Connection], kept: dict[str, Any]
) -> None:
    result = RESULTS["nothing"]
    for rank, end in ends.items():
        send(end, answer(rank, lost=["mesh", "group"] if rank == 2 else [], answered=1))
    world._regroup(result, "interrupted")
    for rank, end in ends.items():
        send(end, answer(rank, answered=2))
    world._regroup(result, "the cell was ended")
    notes, result.notes = result.notes, []
    compare("new groups", notes, kept)
    assert [receive_request(ends[0]) for _ in range(2)] == [Request(act="regroup", number=number) for number in (1, 2)]


def test_answers_of_a_cell_say_how_it_ended_and_what_it_printed(world: CellWorld, ends: dict[int, Connection]) -> None:
    ranks = {rank: RankResult(rank, "died") for rank in range(4)}
    result, outputs = CellResult(1, 4, ranks), []
    run = _Run(world, result, Path("cell.py"), lambda seen: outputs.append(dict(seen)))
    number = run._request.number
    send(ends[0], answer(0, names=["x"], answered=number))
    send(ends[1], answer(1, error=BAD, answered=number))
    send(ends[2], answer(2, error=STOP, answered=number))
    send(ends[3], answer(3, answered=number - 1))
    world._output_file(1).write_text("out")
    run._take(10.0)
    while len(run.waiting) > 1:
        run._take(10.0)
    assert [own.state for own in ranks.values()] == ["done", "failed", "interrupted", "died"]
    assert (run.waiting, run.died, world.names) == ({3}, set(), {0: ["x"], 1: [], 2: []})
    assert outputs == [{0: "", 1: "out", 2: "", 3: ""}]
    ends[3].close()
    run._take(10.0)
    assert (run.waiting, run.died) == (set(), {3})
    assert len(outputs) == 1
