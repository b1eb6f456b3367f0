"""Turn the notes of `frog explain`'s ranks into a chart and a few sentences. Runs no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frog.core.units import format_bytes
from frog.learn.explain.chart import Bar, chart, span_text, waits

Notes = Sequence[Mapping[str, Any]]
"""Notes by rank."""


def write_story(what: str, notes: Notes) -> str:
    """Return the chart and text for a barrier, a rendezvous or an all-reduce."""
    return {"barrier": _barrier, "rendezvous": _rendezvous, "all-reduce": _all_reduce}[what](notes)


def _label(note: Mapping[str, Any]) -> str:
    several = note["world_size"] > note["ranks_per_node"]
    return f"rank {note['rank']}" + (f" on {note['host']}" if several else "")


def _work(notes: Notes) -> str:
    products = ", ".join(f"{note['num_products']}" for note in notes)
    return f"First, the ranks multiply two 256 x 256 matrices (real work): {products} times."


def _barrier(notes: Notes) -> str:
    came, left = [note["came_ns"] for note in notes], [note["left_ns"] for note in notes]
    last = max(came)
    late = came.index(last)
    bars = [
        Bar(
            _label(note),
            [("#", note["began_ns"], note["came_ns"]), (".", note["came_ns"], note["left_ns"])],
            f"waited {span_text(note['left_ns'] - note['came_ns'])}",
        )
        for note in notes
    ]
    waited_ns = sum(left) - sum(came)
    spent_ns = sum(note["left_ns"] - note["began_ns"] for note in notes)
    early = "No rank left before that" if min(left) >= last else "A rank left before that, which must not happen"
    return "\n".join(
        [
            f"A barrier: {len(notes)} ranks, and no rank continues before all have arrived.",
            _work(notes),
            "",
            chart(bars),
            "  # at work   . waiting at the barrier",
            "",
            waits(came),
            "",
            f"rank {late} arrived last, {span_text(last - min(came))} after the first. {early}; all left within "
            f"{span_text(max(left) - min(left))}.",
            f"A barrier ends when the last rank arrives: together, the ranks waited {span_text(waited_ns)}, "
            f"{100 * waited_ns / max(1, spent_ns):.0f} % of their total time.",
        ]
    )


def _all_reduce(notes: Notes) -> str:
    came, left = [note["came_ns"] for note in notes], [note["left_ns"] for note in notes]
    last, size, payload = max(came), len(notes), notes[0]["payload_bytes"]
    bars = [
        Bar(
            _label(note),
            [
                ("#", note["began_ns"], note["came_ns"]),
                (".", note["came_ns"], min(last, note["left_ns"])),
                ("=", min(last, note["left_ns"]), note["left_ns"]),
            ],
            f"blocked {span_text(note['left_ns'] - note['came_ns'])}",
        )
        for note in notes
    ]
    return "\n".join(
        [
            f"An all-reduce: {size} ranks contribute {format_bytes(payload)} each, and each receives the sum of all.",
            _work(notes),
            "",
            chart(bars),
            f"  # at work   . blocked until rank {came.index(last)}, the last, arrived   = sums being sent",
            "",
            waits(came),
            "",
            f"After the last rank arrived, the all-reduce took {span_text(max(left) - last)}.",
            *_wire(notes, payload, size),
            *_result(notes),
        ]
    )


def _wire(notes: Notes, payload: int, size: int) -> list[str]:
    """Compare the bytes that each rank sent with those of a ring all-reduce."""
    formula = 2 * (size - 1) * payload // size
    head = f"A ring sends 2 (n - 1) / n x {payload} = {formula} bytes from every rank."
    if not all(note["bytes_sent"] for note in notes):
        return [head, "The bytes sent are unknown: unlike Linux, this system does not count them per socket."]
    sent = [note["bytes_sent"] for note in notes]
    extra = max(abs(count - formula) for count in sent)
    return [
        head,
        f"Each rank sent, as counted by the kernel: {', '.join(map(str, sent))} bytes.",
        f"The difference is at most {extra} bytes ({100 * extra / formula:.2f} %): the message headers.",
    ]


def _result(notes: Notes) -> list[str]:
    """Compare the ranks' results with the expected sum."""
    gave, expected = [note["gave"] for note in notes], sum(note["gave"] for note in notes)
    wrong = [note["rank"] for note in notes if note["got"] != [expected, expected]]
    given = " + ".join(f"{value:g}" for value in gave)
    if wrong:
        return [f"{given} = {expected:g}, but rank {wrong[0]} has {notes[wrong[0]]['got']}: the sum is wrong."]
    return [f"{given} = {expected:g}: every element has this value on every rank."]


def _rendezvous(notes: Notes) -> str:
    serves = notes[0]["listener"] == "rank 0"
    order = sorted(notes, key=lambda note: note["knocked_ns"])
    bars = []
    for note in notes:
        opens = serves and note["rank"] == 0
        came = "opens store" if opens else f"number {order.index(note) + 1}"
        spans = [
            ("#", note["began_ns"], note["knocked_ns"]),
            ("o" if opens else "?", note["knocked_ns"], note["reached_ns"]),
            (".", note["reached_ns"], note["complete_ns"]),
            ("=", note["complete_ns"], note["joined_ns"]),
        ]
        bars.append(Bar(_label(note), spans, f"{came}, waited {span_text(note['complete_ns'] - note['knocked_ns'])}"))
    return "\n".join(
        [
            f"A rendezvous: {len(notes)} ranks find each other at {notes[0]['rendezvous_address']}.",
            _work(notes),
            "",
            chart(bars),
            "  # at work   ? join request   o store open, waiting for requests",
            "  . until all have joined   = connecting   number 2: the second rank to ask to join",
            "",
            _places(notes),
            "",
            *_arrivals(notes, order, serves),
            f"The last to arrive was rank {order[-1]['rank']}; the world waited for it.",
            f"rank 0 is the first process of node 0 ({notes[0]['host']}): the launcher assigned the numbers before any",
            f"rank arrived. Here it arrived as number {order.index(notes[0]) + 1}.",
        ]
    )


def _arrivals(notes: Notes, order: Notes, serves: bool) -> list[str]:
    """Describe the store's server, early connection attempts, and the order in which the ranks continued."""
    inside = ", ".join(str(note["rank"]) for note in sorted(notes, key=lambda note: note["arrival"]))
    lines = [f"{notes[0]['listener']} serves the store; all ranks know its address from MASTER_ADDR and MASTER_PORT."]
    early = [note for note in order if note["knocked_ns"] < notes[0]["knocked_ns"]] if serves else []
    if early:
        before = span_text(notes[0]["knocked_ns"] - early[0]["knocked_ns"])
        lines.append(
            f"rank {early[0]['rank']} arrived {before} before rank 0 opened the store, and retried until it "
            "could connect."
        )
    lines.append(f"Once connected, each rank incremented a counter in the store: rank {inside}.")
    if serves:
        lines.append("rank 0 comes late there, because its server first waits for all ranks.")
    return lines


def _places(notes: Notes) -> str:
    """Show how each rank's number follows from its node and local rank."""
    lines = ["RANK = NODE_RANK x ranks per node + LOCAL_RANK"]
    for note in notes:
        arithmetic = f"{note['node_rank']} x {note['ranks_per_node']} + {note['local_rank']}"
        lines.append(f"{note['rank']:4} = {arithmetic:12}  {note['host']}, pid {note['pid']}")
    return "\n".join(lines)
