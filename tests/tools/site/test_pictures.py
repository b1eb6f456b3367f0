"""What the pictures that move show, compared with the code that trains and with the planner."""

from __future__ import annotations

import itertools
import json
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contrast import contrast
from harness import LIMIT_S

from frog.core.config import ModelConfig
from frog.core.errors import ConfigError
from frog.plan.layout import FLOAT_BYTES
from frog.train.comm import Axis
from frog.train.comm.axis import Silent
from frog.train.comm.collectives import exchange, ring
from frog.train.comm.collectives.arithmetic import Reduction
from frog.train.comm.collectives.connection import Connection, Mesh
from frog.train.comm.collectives.frames import FrameCodec
from frog.train.model import TinyTransformer
from frog.train.parallel.data.ddp import cut_buckets
from frog.train.parallel.data.flat import FlatParameters
from frog.train.parallel.data.zero3 import ShardedBuffer, Zero3
from frog.train.parallel.model.context import visible, zigzag
from frog.train.parallel.model.expert import by_expert
from frog.train.parallel.schedules.schedule import NAMES
from tools.site.pictures import divided, failing, memories, rings, schedules
from tools.site.pictures.__main__ import FOLDER
from tools.site.pictures.catalog import PICTURES, script_of
from tools.site.pictures.scene import COLORS, text_colors

ROOT = Path(__file__).parents[3]
SIZES = (2, 3, 4, 5, 8)


class Recorded(Connection):
    """A real connection that notes the sum in each message it sends: a number whose bits are the summed ranks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[tuple[int, int]] = []

    def send(self, kind: int, seq: int, payload: Any = b"", tag: int = 0) -> None:
        numbers = np.frombuffer(payload, np.int64)
        self.sent.append((len(numbers), int(numbers[0])))
        super().send(kind, seq, payload, tag)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname(), timeout=LIMIT_S)
        return caller, server.accept()[0]


def run_ranks(size: int, act: Any) -> list[dict[int, list[tuple[int, int]]]]:
    """Call `act` on a mesh of connected threads; return each rank's messages to each peer: length and first number."""
    connections: list[dict[int, Recorded]] = [{} for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        for rank, peer, sock in zip((a, b), (b, a), connected(), strict=True):
            codecs = (FrameCodec(bytes([rank, 1]), False), FrameCodec(bytes([peer, 1]), False))
            connections[rank][peer] = Recorded(sock, peer, *codecs)
    meshes = [Mesh(rank, size, dict(mine), LIMIT_S) for rank, mine in enumerate(connections)]
    try:
        with ThreadPoolExecutor(size) as pool:
            list(pool.map(act, meshes))
    finally:
        for connection in (connection for mine in connections for connection in mine.values()):
            connection.socket.close()
    return [{peer: connection.sent for peer, connection in mine.items()} for mine in connections]


def mask(ranks: frozenset[int]) -> int:
    return sum(1 << rank for rank in ranks)


@pytest.mark.parametrize("size", SIZES)
def test_ring_picture_shows_the_messages_of_the_real_ring(size: int) -> None:
    """Parts have different lengths, so that a message's length tells its part."""

    def act(mesh: Mesh) -> None:
        parts = [np.full(part + 1, 1 << mesh.rank, np.int64) for part in range(size)]
        ring.all_reduce(mesh, 1, 0, parts, Reduction("sum", np.dtype(np.int64), size))
        assert all(int(number) == (1 << size) - 1 for part in parts for number in part)

    sent = run_ranks(size, act)
    before = [[frozenset([rank])] * size for rank in range(size)]
    drawn: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(size)]
    for moment in rings.play(size, size, rings.ring_messages(size), None):
        for message in moment.sent:
            found = drawn[message.sender].setdefault(message.receiver, [])
            found.append((message.part + 1, mask(before[message.sender][message.part])))
        before = moment.buffers
    assert [{peer: found for peer, found in mine.items() if found} for mine in sent] == drawn
    assert all(sums == frozenset(range(size)) for parts in before for sums in parts)


@pytest.mark.parametrize("size", SIZES)
def test_ring_picture_states_the_bytes_that_a_ring_sends(size: int) -> None:
    elements = size * 1000
    found = rings.bytes_sent(elements, size, rings.ring_messages(size), size)
    assert found == 2 * (size - 1) * 4 * elements // size


@pytest.mark.parametrize("size", SIZES)
def test_tree_picture_sends_down_the_tree_of_the_real_broadcast(size: int) -> None:
    def act(mesh: Mesh) -> None:
        x = np.full(1, 7 if mesh.rank == 0 else 0, np.int64)
        exchange.broadcast(mesh, 1, 0, x, 0)
        assert x[0] == 7

    edges = {(rank, peer) for rank, mine in enumerate(run_ranks(size, act)) for peer, found in mine.items() if found}
    messages = rings.tree_messages(size)
    assert {(message.sender, message.receiver) for message in messages if not message.adds} == edges
    assert {(message.receiver, message.sender) for message in messages if message.adds} == edges


@pytest.mark.parametrize("size", SIZES)
def test_tree_sums_every_rank_once_in_twice_the_levels(size: int) -> None:
    *_, last = rings.play(size, 1, rings.tree_messages(size), None)
    assert last.buffers == [[frozenset(range(size))]] * size
    assert len(list(rings.play(size, 1, rings.tree_messages(size), None))) == 2 * (size - 1).bit_length()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("messages", [rings.ring_messages, rings.tree_messages])
def test_all_ranks_wait_in_the_end_for_a_rank_that_stops(size: int, messages: Any) -> None:
    stop = (1, size // 2 if messages is rings.ring_messages else 0)
    *_, last = rings.play(size, size, messages(size), stop)
    assert last.waits.keys() == set(range(size)) - {1}
    assert [rank for rank, on in last.waits.items() if on == 1] == [2 % size if messages is rings.ring_messages else 0]
    for rank in last.waits:  # each chain of waits leads to the rank that stopped
        seen = set[int]()
        while rank != 1:
            assert rank not in seen
            seen.add(rank)
            rank = last.waits[rank]


def test_a_rank_may_not_be_added_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        rings.deliver([[frozenset([0])], [frozenset([0, 1])]], [rings.Message(0, 0, 1, 0, True)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (3, 6), (4, 8), (4, 16)])
def test_pipelines_bubble_is_the_textbooks(name: str, stages: int, micro: int) -> None:
    run = schedules.simulated(name, stages, micro)
    assert run.bubble == pytest.approx(schedules.formula_of(name, stages, micro))
    words = texts(schedules.pipelines(stages, micro).svg())
    assert f"bubble {run.bubble:.1%}, rank 0 keeps {run.peak_in_flight[0]}" in words


def test_pipelines_state_why_a_schedule_cannot_be_made() -> None:
    with pytest.raises(ConfigError):
        schedules.simulated("interleaved", 4, 6)
    words = " ".join(texts(schedules.pipelines(4, 6).svg()))
    assert "6 micro-batches are not a multiple of 4 ranks" in words


@pytest.mark.parametrize("count", schedules.BUCKETS)
def test_buckets_are_those_of_the_strategy_and_never_overlap(count: int) -> None:
    found = schedules.buckets_of(count)
    layers, numel = schedules.MODEL.layers, 64
    named = {f"{layer}": torch.nn.Parameter(torch.zeros(numel, 1)) for layer in range(layers)}
    flat = FlatParameters(named)
    cut = cut_buckets(flat, numel * (layers // count), flat.size)
    assert [(bucket.layers.start * numel, bucket.layers.stop * numel) for bucket in found] == cut
    for before, after in itertools.pairwise(found):
        assert after.start_s >= max(after.full_s, before.end_s)
    assert found[0].start_s == found[0].full_s
    assert found[-1].full_s == pytest.approx(schedules.BACKWARD_S * layers)
    assert sum(bucket.num_bytes for bucket in found) == 4 * layers * schedules.MODEL.dense_layer_parameters()


def test_one_bucket_hides_nothing_and_each_bucket_pays_its_delays() -> None:
    busy = {
        count: sum(bucket.end_s - bucket.start_s for bucket in schedules.buckets_of(count))
        for count in schedules.BUCKETS
    }
    assert schedules.buckets_of(1)[0].end_s == pytest.approx(schedules.BACKWARD_S * schedules.MODEL.layers + busy[1])
    assert list(busy.values()) == sorted(busy.values())


@pytest.mark.parametrize("precision", memories.PRECISIONS)
def test_zero_picture_has_the_bytes_of_the_lab(precision: str) -> None:
    """Lab 4's table: 2 + 2 + 12 or 4 + 4 + 8 bytes, of which ZeRO 1 to 3 divide the last one, two and three."""
    sizes = (2, 2, 12) if "bf16" in precision else (4, 4, 8)
    for stage, ranks in itertools.product(range(4), (1, 8, 64)):
        found = memories.state_bytes(stage, 7e9, ranks, precision)
        assert found == [7e9 * size / (ranks if stage >= 3 - place else 1) for place, size in enumerate(sizes)], (
            stage,
            ranks,
        )
    words = texts(memories.zero(7e9, 8, memories.PRECISIONS[0]).svg())
    assert {"112 GB: more than a GPU has", "38.5 GB", "26.3 GB", "14 GB"} <= set(words)


@pytest.mark.parametrize("layers", [2, 3, 5])
def test_fsdp_picture_gathers_and_frees_in_the_order_of_zero3(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order = zero3_order(layers, monkeypatch)
    events = [event for event in memories.fsdp_events(layers) if event.kind in ("gather", "free")]
    assert order == [(event.kind, event.unit) for event in events]


def zero3_order(layers: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Train a micro-batch with the real strategy; return which units it gathered and freed."""
    order: list[tuple[str, int]] = []
    numbers: dict[int, int] = {}

    def noted(kind: str, act: Any) -> Any:
        def call(buffer: ShardedBuffer) -> None:
            if id(buffer) in numbers and buffer._is_there == (kind == "free"):
                order.append((kind, numbers[id(buffer)]))
            act(buffer)

        return call

    monkeypatch.setattr(ShardedBuffer, "begin", noted("gather", ShardedBuffer.begin))
    monkeypatch.setattr(ShardedBuffer, "free", noted("free", ShardedBuffer.free))
    model = TinyTransformer(ModelConfig(16, 8, 8, layers, 2, 2, 8))
    alone = Axis("dp", [0], 0, torch.device("cpu"), None, [Silent()])
    strategy = Zero3(model, dict(model.named_parameters()), alone, alone)
    units = enumerate(strategy.sharded.values(), memories.ROOT)
    numbers.update({id(buffer): number for number, unit in units for buffer in unit.buffers})
    tokens = torch.arange(8).view(1, 8)
    loss = model(tokens, tokens)
    strategy.before_backward(last=True)
    loss.backward()
    strategy.after_backward()
    return order


def test_fsdp_pictures_peak_is_the_planners() -> None:
    """At its peak it has weights and gradients of the root and two layers, as `plan.memory` counts them."""
    curve = memories.gathered_over_time(memories.fsdp_events())
    units = memories.unit_parameters(memories.ROOT) + 2 * memories.unit_parameters(0)
    assert max(num_bytes for _, num_bytes in curve) == 2 * FLOAT_BYTES * units
    assert min(num_bytes for _, num_bytes in curve) == 0
    assert curve[-1][1] == 0
    total = sum(memories.unit_parameters(unit) for unit in range(memories.ROOT, memories.MODEL.layers))
    assert total == memories.MODEL.num_parameters()


def test_divided_matrices_compute_what_whole_ones_do() -> None:
    x, first, second = (torch.tensor(matrix) for matrix in (divided.INPUT, divided.FIRST, divided.SECOND))
    whole = torch.relu(x @ first) @ second
    parts = [divided.rank_parts(rank) for rank in (0, 1)]
    assert torch.equal(torch.tensor(parts[0][3]) + torch.tensor(parts[1][3]), whole)
    assert torch.equal(torch.cat([torch.tensor(part[0]) for part in parts], dim=1), first)
    assert torch.equal(torch.cat([torch.tensor(part[2]) for part in parts]), second)
    assert f"{parts[0][3][0][0]} + {parts[1][3][0][0]} = {whole[0, 0]}" in " ".join(texts(divided.tensor().svg()))


@pytest.mark.parametrize("router", divided.ROUTERS)
def test_experts_receive_the_rows_of_their_tokens_by_sender(router: str) -> None:
    chosen = divided.choices(router)
    counts = [[row.count(expert) for expert in range(divided.NUM_EXPERTS)] for row in chosen]
    for expert, rows in enumerate(divided.dispatched(chosen)):
        assert all(chosen[sender][token] == expert for sender, token in rows)
        assert [sender for sender, _ in rows] == [
            sender for sender, row in enumerate(counts) for _ in range(row[expert])
        ]
        order = by_expert(torch.tensor([[row[expert]] for row in counts]))
        assert order.tolist() == list(range(len(rows))), "with one expert on a rank, rows are not sorted again"
    for row in chosen:
        ranked = sorted(range(len(row)), key=lambda token: divided.sorted_places(row)[token])
        assert [row[token] for token in ranked] == sorted(row)
    totals = [len(rows) for rows in divided.dispatched(chosen)]
    assert sum(totals) == divided.NUM_EXPERTS * divided.TOKENS
    assert (max(totals) == min(totals)) == (router == "even")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ring_attention_computes_what_the_causal_mask_leaves(ranks: int) -> None:
    """One chunk is two positions; the real code says which queries and keys of a round a rank uses."""
    done: list[tuple[int, int]] = []
    for round_, rank in itertools.product(range(ranks), range(ranks)):
        found = divided.computed(rank, round_, ranks)
        owner = (rank - round_) % ranks
        queries, keys = (zigzag(4 * ranks, ranks, of)[::2] // 2 for of in (rank, owner))
        rows, columns = visible(owner, rank, 2)
        real = {(int(q), int(k)) for q in queries[rows] for k in keys[columns] if k <= q}
        assert set(found) == real
        done += found
    assert sorted(done) == [(q, k) for q in range(2 * ranks) for k in range(q + 1)]
    work = [
        sum(0.5 if q == k else 1 for round_ in range(ranks) for q, k in divided.computed(rank, round_, ranks))
        for rank in range(ranks)
    ]
    assert len(set(work)) == 1


def test_restart_resumes_from_the_last_complete_checkpoint() -> None:
    assert failing.resumed_from(43, 20) == 40
    assert failing.resumed_from(41, 20) == 40
    assert failing.resumed_from(40, 20) == 20, "a checkpoint is written after its step"


@pytest.mark.parametrize(
    ("mistake", "waits"),
    [
        ("only rank 0 calls it", {0: [1, 2, 3]}),
        ("one rank is elsewhere", {0: [2], 1: [2], 3: [2]}),
        ("all send first", {0: [1], 1: [2], 2: [3], 3: [0]}),
    ],
)
def test_hang_shows_who_waits_for_whom(mistake: str, waits: dict[int, list[int]]) -> None:
    assert failing.standstill(failing.programs(mistake)).waits == waits


def test_programs_without_a_mistake_end() -> None:
    call = failing.Call
    receives_first = [[call("send", "", 1), call("receive", "", 1)], [call("receive", "", 0), call("send", "", 0)]]
    end = failing.standstill([[call("collective", ""), *calls] for calls in receives_first])
    assert end == failing.Standstill([None, None], {})


# ---- the files -------------------------------------------------------------------------------------------------------


def texts(svg: str) -> list[str]:
    return [unescape(words) for words in re.findall(r"<text[^>]*>([^<]+)</text>", svg)]


@pytest.mark.parametrize("name", PICTURES)
def test_committed_picture_is_what_the_generator_writes(name: str) -> None:
    """After a change of what a picture shows: python -m tools.site.pictures."""
    file = FOLDER / f"{name}.svg"
    assert file.read_text() == PICTURES[name].initial().svg()
    assert file.stat().st_size < 60_000


def test_folder_has_no_other_pictures() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == PICTURES.keys()


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_small_complete_svgs_with_steps(name: str) -> None:
    script = script_of(name)
    head, _, body = script.partition(", ")
    assert head == f'frogPicture("{name}"'
    found = json.loads(body.rstrip().removesuffix(")"))
    counts = [len(slider["labels"]) for slider in found["sliders"]]
    assert found["scenes"].keys() == {"-".join(map(str, place)) for place in itertools.product(*map(range, counts))}
    assert all(0 <= slider["initial"] < len(slider["labels"]) for slider in found["sliders"])
    initial = "-".join(str(slider["initial"]) for slider in found["sliders"])
    assert found["scenes"][initial] == PICTURES[name].initial().svg()
    for key, svg in found["scenes"].items():
        page = ET.fromstring(svg)
        steps, length = json.loads(page.attrib["data-steps"]), int(page.attrib["data-length"])
        assert steps[0][0] == 0, key
        assert [start for start, _ in steps] == sorted({start for start, _ in steps}), key
        assert steps[-1][0] < length, key
        used = set(re.findall(r'class="(a\d+)"', svg))
        assert used == set(re.findall(r"\.(a\d+)\{", svg)), key
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", ""), key


def _lab_pictures() -> Iterator[tuple[str, str, str]]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]*pictures/moving/[^)]*)\)", page.read_text()):
            yield page.relative_to(ROOT).as_posix(), words, target


def test_every_lab_has_a_picture_that_moves_and_every_picture_a_place() -> None:
    found = list(_lab_pictures())
    assert {f"docs/labs/lab{number}.md" for number in range(7)} <= {page for page, _, _ in found}
    assert {Path(target).stem for _, _, target in found} == PICTURES.keys()
    assert [page for page, words, _ in found if len(words) < 40] == [], "the alternative text says what is seen"


def test_text_in_a_color_of_ranks_or_phases_can_be_read() -> None:
    used = {name for path in FOLDER.glob("*.svg") for name in re.findall(r'class="t-(\w+)"', path.read_text())}
    assert {"r0", "r1", "r2", "r3"} <= used
    for name in used:
        for scheme, color in enumerate(text_colors(name)):
            assert min(contrast(color, COLORS[ground][scheme]) for ground in ("ground", "raised")) >= 4.5, name
