"""Compare what arrives, byte by byte, with the docstring's format, on sockets that move few bytes at a time."""

import random
from typing import Any, NoReturn

import torch

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Case = dict[str, Any]
WHOLE, PIECES, LARGE_PIECES = 1 << 20, 7, 2000
"""Most bytes that a call on a socket moves."""
TIMEOUT_S = 10.0
"""In seconds of a simulated clock."""
PREDICTED_FRAMES, PREDICTED_NUMEL = 100, 250
SIZE, NUMEL = 3, 300_000
HEADER = 12


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    alone = dict(draw_alone(draw))
    rings = [draw_ring(draw, *about) for about in ((2, 1, PIECES), (3, 4, PIECES), (3, 4, LARGE_PIECES))]
    rings += [draw_ring(draw, 2, 8, LARGE_PIECES), predicted(draw)]
    found = grade.call({"runs": [*alone.values(), *rings]}, seconds=6.0).values[0]
    seen = dict(zip(alone, found, strict=False))
    check_format(grade, alone["whole"], seen["whole"])
    check_pieces(grade, alone["pieces"], seen["pieces"])
    check_long_out(grade, alone["long out"], seen["long out"])
    for case, one in sorted(zip(rings, found[len(alone) :], strict=True), key=lambda pair: -pair[0]["most"]):
        check_ring(grade, case, one)
    check_errors(grade, alone, seen)
    check_silence(grade, alone, seen)
    wire = found[-1]["sent"][0]
    check_tcp(grade)
    pieces = sum(len(one[0]) for one in rings[2]["rounds"])
    grade.measured("rings of 2 and 3, with 1 to 7 bytes a call", "every frame arrived")
    grade.measured("frames larger than the system's buffers", f"{pieces:,} bytes from rank 0 of 3, no deadlock")
    grade.measured("over TCP, 3 processes", f"2 frames of {NUMEL * 8:,} bytes from each")
    grade.predicted("wire-bytes", wire)


# ---- cases -----------------------------------------------------------------------------------------------------------


def pack(payload: bytes, mark: bytes = b"RING", length: int | None = None) -> bytes:
    """Encode a frame as the docstring describes it."""
    return mark + (len(payload) if length is None else length).to_bytes(8, "big") + payload


def draw_bytes(draw: random.Random, num: int) -> list[int]:
    return [draw.randint(1, 255) for _ in range(num)]


def draw_ring(draw: random.Random, size: int, item_bytes: int, most: int) -> Case:
    """Draw rounds in which each rank sends another number of items; some frames are empty."""
    rounds = [
        [draw_bytes(draw, 0 if most == PIECES and rank == at else num(draw, item_bytes, most)) for rank in range(size)]
        for at in range(-1, 2)
    ]
    return {
        "kind": "ring",
        "size": size,
        "item_bytes": item_bytes,
        "most": most,
        "seed": draw.randrange(1 << 30),
        "rounds": rounds,
    }


def num(draw: random.Random, item_bytes: int, most: int) -> int:
    return item_bytes * (draw.randint(5, 20) if most == PIECES else draw.randint(40_000, 50_000) // item_bytes)


def predicted(draw: random.Random) -> Case:
    """Return the ring of the prediction: 100 frames of 250 float32 from each of two ranks."""
    frames = [[draw_bytes(draw, 4 * PREDICTED_NUMEL)] * 2] * PREDICTED_FRAMES
    return {
        "kind": "ring",
        "size": 2,
        "item_bytes": 4,
        "most": WHOLE,
        "seed": draw.randrange(1 << 30),
        "rounds": frames,
    }


def draw_alone(draw: random.Random) -> list[tuple[str, Case]]:
    """Draw exchanges of one rank with a neighbor that sends exact bytes; a next frame follows where all goes well."""
    item, out_items, items = 4, draw.randint(15, 30), draw.randint(31, 60)
    payload, following = draw_bytes(draw, item * items), draw_bytes(draw, draw.randint(10, 40))
    frame, after = pack(bytes(payload)), pack(bytes(following))
    base = {
        "kind": "alone", "most": WHOLE, "item_bytes": item, "out": draw_bytes(draw, item * out_items), "closes": False,
        "num_bytes": item * items, "timeout_s": TIMEOUT_S, "payload": payload, "after": after,
    }  # fmt: skip
    middle, body = draw.randint(1, HEADER - 1), HEADER + draw.randint(1, item * items - 1)
    longer, shorter = payload + draw_bytes(draw, 5), payload[:-5]
    part = len(frame) // 5
    slow = [(0.6 * TIMEOUT_S, frame[at : at + part]) for at in range(0, len(frame), part)]
    cases = {
        "whole": {"sends": [(0.0, frame + after)]},
        "pieces": {"sends": [(0.0, frame + after)], "most": PIECES},
        "long out": {
            "sends": [(0.0, frame + after)],
            "most": PIECES,
            "out": draw_bytes(draw, item * (items + out_items)),
        },
        "mark": {"sends": [(0.0, pack(bytes(payload), mark=b"RONG") + after)]},
        "longer": {"sends": [(0.0, pack(bytes(longer)) + after)]},
        "shorter": {"sends": [(0.0, pack(bytes(shorter)) + after)]},
        "closed before a frame": {"sends": [], "closes": True},
        "closed in a header": {"sends": [(0.0, frame[:middle])], "closes": True},
        "closed in a payload": {"sends": [(0.0, frame[:body])], "closes": True},
        "slow": {"sends": slow},
        "silent": {"sends": [(20 * TIMEOUT_S, b"")]},
        "silent in a payload": {"sends": [(0.0, frame[:body]), (20 * TIMEOUT_S, b"")]},
    }
    return [(name, base | case | {"seed": draw.randrange(1 << 30)}) for name, case in cases.items()]


# ---- one rank and a neighbor -----------------------------------------------------------------------------------------


def ended(seen: Case) -> str:
    return f"exchange raised {seen['error']}" if seen["error"] else f"exchange {seen['stuck'] or 'returned'}"


def check_sent(grade: Grade, case: Case, seen: Case, where: str) -> None:
    """Compare what the right neighbor received with the format."""
    payload, arrived = bytes(case["out"]), seen["arrived"]
    if arrived == pack(payload):
        return
    items = len(payload) // case["item_bytes"]
    says = f"{where}: `out` has {count(items, 'item')} of {case['item_bytes']} bytes, {len(payload)} bytes in all."
    header, length = arrived[:HEADER], int.from_bytes(arrived[4:HEADER], "big")
    if arrived.count(b"RING") > 1:
        grade.reject(
            "sends-again",
            f"{says} The right neighbor received {len(arrived)} bytes, in which the mark RING occurs "
            f"{arrived.count(b'RING')} times.",
        )
    if len(arrived) >= HEADER and header == pack(b"", length=items):
        grade.reject("counts-items", f"{says} The header says {items} bytes.")
    if len(arrived) >= HEADER and int.from_bytes(header[4:], "little") == len(payload):
        grade.reject(
            "another-byte-order",
            f"{says} Its 8 bytes of length are {header[4:].hex(' ')}, which is {length:,} in big-endian order.",
        )
    if arrived.endswith(payload) and len(arrived) > len(pack(payload)):
        extra = len(arrived) - len(payload)
        grade.reject(
            "another-byte-order", f"{says} It was sent after a header of {extra} bytes; the format has {HEADER}."
        )
    if arrived and pack(payload).startswith(arrived) and not seen["error"]:
        grade.reject(
            "send-takes-all",
            f"{says} With the header that makes {len(pack(payload))}; exchange returned after the system had taken "
            f"{len(arrived)} of them.",
        )
    grade.reject(
        "unknown", f"{says} The right neighbor received {len(arrived)} bytes: {arrived[:40]!r} …; {ended(seen)}."
    )


def check_format(grade: Grade, case: Case, seen: Case) -> None:
    where = "One frame out and one in, each complete at once"
    if "BlockingIOError" in seen["error"]:
        blocks(grade, where, seen["error"])
    if seen["arrived"] or not seen["error"]:
        check_sent(grade, case, seen, where)
    if seen["rest"] != case["after"] and not seen["error"]:
        taken = len(case["after"]) - len(seen["rest"])
        if taken > 0:
            grade.reject(
                "reads-too-much",
                f"{where}, and the left neighbor's next frame of {len(case['after'])} bytes already waits: exchange "
                f"took {taken} bytes of it, and the next exchange will not find them.",
            )
    if seen["error"] or seen["stuck"]:
        grade.reject("unknown", f"{where}: {ended(seen)}.")
    check_into(grade, case, seen, where)
    if seen["shut"]:
        grade.reject(
            "ends-by-closing", f"{where}: after exchange returned, its socket to the right can send nothing more."
        )


def check_into(grade: Grade, case: Case, seen: Case, where: str) -> None:
    if seen["into"] != bytes(case["payload"]):
        explain_into(grade, where, seen["into"], bytes(case["payload"]))


def explain_into(grade: Grade, where: str, found: bytes, expected: bytes) -> NoReturn:
    at = next((n for n, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b), 0)
    says = f"{where}: exchange returned, and `into` has {at} of the {len(expected)} bytes that were sent"
    if at and not any(found[at:]):
        grade.reject("one-receive", f"{says}. The rest of it was not written.")
    grade.reject("unknown", f"{says}; then it differs.")


def check_pieces(grade: Grade, case: Case, seen: Case) -> None:
    where = f"Each call on a socket moves 1 to {PIECES} bytes"
    if seen["error"].startswith(("error:", "FrameError", "ValueError", "IndexError")) and 0 < seen["received"] < HEADER:
        grade.reject(
            "header-in-one-piece",
            f"{where}: {ended(seen)}, after {count(seen['received'], 'byte')} of the {HEADER} bytes of the header. "
            "With all bytes at once it worked.",
        )
    if "BlockingIOError" in seen["error"]:
        blocks(grade, where, seen["error"])
    check_sent(grade, case, seen, where)
    if seen["error"] or seen["stuck"]:
        grade.reject("unknown", f"{where}: {ended(seen)}.")
    check_into(grade, case, seen, where)
    if seen["rest"] != case["after"]:
        grade.reject("unknown", f"{where}: {len(case['after']) - len(seen['rest'])} bytes of the next frame are gone.")


def check_long_out(grade: Grade, case: Case, seen: Case) -> None:
    where = f"Each call on a socket moves 1 to {PIECES} bytes, and the frame out is longer than the one in"
    sent, whole = seen["arrived"], pack(bytes(case["out"]))
    if not seen["error"] and not seen["stuck"] and len(sent) < len(whole) and whole.startswith(sent):
        text = f"{where}: exchange returned when it had received {len(case['payload'])} bytes and had sent {len(sent)}"
        grade.reject("stops-after-receiving", f"{text} of {len(whole)}.")
    check_sent(grade, case, seen, where)
    if seen["error"] or seen["stuck"]:
        grade.reject("unknown", f"{where}: {ended(seen)}.")


def blocks(grade: Grade, where: str, error: str) -> NoReturn:
    grade.reject("sends-without-asking", f"{where}: exchange raised {error}. The sockets are non-blocking.")


# ---- rings -----------------------------------------------------------------------------------------------------------


def check_ring(grade: Grade, case: Case, seen: Case) -> None:
    size, first = case["size"], [len(pack(bytes(frame))) for frame in case["rounds"][0]]
    where = f"Ring of {size}, frames of {' and '.join(f'{num:,}' for num in first)} bytes"
    if size > 2:
        where = f"Ring of {size}, frames of {', '.join(f'{num:,}' for num in first)} bytes"
    errors = [(rank, one["error"]) for rank, rounds in enumerate(seen["rounds"]) for one in rounds if one["error"]]
    blocked = [error for _, error in errors if error.startswith("BlockingIOError")]
    if blocked:
        blocks(grade, where, blocked[0])
    timeouts = [error for _, error in errors if error.startswith("TimeoutError")]
    if (seen["stuck"] or timeouts) and not any(seen["received"]) and all(seen["sent"]):
        ends = "raised TimeoutError" if timeouts else "waited forever"
        sent = ", ".join(f"{num:,}" for num in seen["sent"])
        grade.reject(
            "sends-first",
            f"{where}: the ranks had sent {sent} bytes and received 0 when they {ends}: the buffers were full.",
        )
    for rank, error in errors:
        grade.reject("unknown", f"{where}: rank {rank}'s exchange raised {error}.")
    if seen["stuck"]:
        grade.reject(
            "unknown", f"{where}: a rank {seen['stuck']}; received {seen['received']}, sent {seen['sent']} bytes."
        )
    for rank, rounds in enumerate(seen["rounds"]):
        for number, one in enumerate(rounds):
            expected = bytes(case["rounds"][number][(rank - 1) % size])
            if one["into"] != expected:
                explain_into(grade, f"{where}, exchange {number + 1}, rank {rank}", one["into"], expected)


# ---- errors ----------------------------------------------------------------------------------------------------------


def check_errors(grade: Grade, alone: dict[str, Case], seen: dict[str, Case]) -> None:
    for name, id, length in (
        ("mark", "mark-not-checked", 0),
        ("longer", "length-not-checked", 5),
        ("shorter", "length-not-checked", -5),
    ):
        num, found = alone[name]["num_bytes"], seen[name]
        if found["error"].startswith("FrameError"):
            continue
        what = f"announces {num + length} bytes, but `into` has {num}" if length else "begins with the mark RONG"
        text = f"The left neighbor's frame {what}: {ended(found)}, expected FrameError."
        grade.reject(id if not found["error"] or length else "unknown", text)
    for name in ("closed before a frame", "closed in a header", "closed in a payload"):
        found = seen[name]
        where = f"The left neighbor's connection is {name}"
        if found["num_ends"] > 100:
            text = f'{where}: recv returned b"" {found["num_ends"]} times, and exchange asked again.'
            grade.reject("end-looks-like-silence", text)
        if not found["error"] and not found["stuck"]:
            got = found["received"]
            grade.reject(
                "half-a-frame-is-enough", f"{where}, after {count(got, 'byte')}: exchange returned without an error."
            )
        if not found["error"].startswith(
            ("ConnectionError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError")
        ):
            grade.reject("unknown", f"{where}: {ended(found)}, expected ConnectionError.")


def check_silence(grade: Grade, alone: dict[str, Case], seen: dict[str, Case]) -> None:
    parts = alone["slow"]["sends"]
    gap_s = f"{parts[0][0]:.0f} s"
    where = f"The left neighbor sends its frame in {len(parts)} parts, {gap_s} apart; timeout_s is {TIMEOUT_S:.0f}"
    found = seen["slow"]
    if found["error"].startswith("TimeoutError"):
        text = f"{where}: {ended(found)} after {found['took_s']:.0f} s, {gap_s} or less after the last byte."
        grade.reject("deadline-for-the-whole", text)
    spins(grade, where, found)
    if found["error"] or found["stuck"]:
        grade.reject("unknown", f"{where}: {ended(found)}.")
    check_into(grade, alone["slow"], found, where)
    for name in ("silent", "silent in a payload"):
        found, where = seen[name], f"The left neighbor falls {name}; timeout_s is {TIMEOUT_S:.0f}"
        where = where.replace("falls silent;", "sends nothing;")
        spins(grade, where, found)
        if found["stuck"]:
            grade.reject("no-deadline", f"{where}: exchange {found['stuck']}.")
        if not found["error"].startswith("TimeoutError"):
            grade.reject("unknown", f"{where}: {ended(found)}, expected TimeoutError.")
        if found["took_s"] > 1.5 * TIMEOUT_S:
            grade.reject("unknown", f"{where}: exchange raised TimeoutError after {found['took_s']:.0f} s.")


def spins(grade: Grade, where: str, found: Case) -> None:
    if found["error"].startswith("GaveUp") and found["calls"] > 1000:
        grade.reject(
            "always-writable",
            f"{where}: exchange called select {found['calls']:,} times within {found['took_s']:.0f} s, and each time "
            "it returned at once.",
        )


def check_tcp(grade: Grade) -> None:
    world = grade.world(SIZE, {"numel": NUMEL}, work="over_tcp")
    for rank, found in enumerate(world.values):
        expected = torch.arange(NUMEL, dtype=torch.int64) * SIZE + (rank - 1) % SIZE
        grade.compare(found, expected, f"over TCP, what rank {rank} received", rtol=0.0, atol=0.0)
