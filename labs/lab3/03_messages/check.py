"""Compare the messages sent with those received, case by case; the first case that fails explains why."""

from typing import Any

from ranks import make_messages, with_marks

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count


def check(grade: Grade) -> None:
    world = grade.world(2, {"seed": grade.seed}, seconds=3.0)
    sent, received = world.values
    messages = make_messages(grade.seed)
    messages["its own marks"] = with_marks(received["on the wire"], messages["torn"][0])
    check_answers(grade, sent)
    check_second_message(grade, sent["waiting"])
    check_waiting(grade, sent["waiting"], received, messages)
    check_slow_receiver(grade, received, messages)
    check_slow_sender(grade, sent, received, messages)
    check_end(grade, received["waiting"], messages["waiting"])
    check_any_bytes(grade, sent, received, messages)
    check_empty(grade, sent["empty"], received["empty"], messages["empty"])
    check_case(grade, "mark-in-the-data", "its own marks", sent, received, messages)
    check_large(grade, sent, received, messages)
    check_two_connections(grade, received["two connections"], messages["two connections"])
    check_torn(grade, received["torn"], len(received["on the wire"]), len(messages["torn"][0]))
    extra = len(received["on the wire"]) - len(messages["torn"][0])
    grade.measured("messages", f"{sum(map(len, messages.values())) - 1} arrived complete, in order, up to 300 kB")
    grade.measured("bytes that mark a message of 20 to 60 bytes", str(extra))
    grade.predicted("bytes-on-the-wire", 3 * 8 + 0 + 10 + 100_000)


def check_answers(grade: Grade, sent: dict[str, Any]) -> None:
    """Check that communication is one-way: send_message reads nothing, and receive_message sends nothing."""
    for said in (case[-1] for case in sent.values() if isinstance(case, list) and case):
        if isinstance(said, str) and said.startswith("AwaitsAnswerError"):
            grade.reject("acknowledged", "send_message called recv on its socket and waits for an answer.")
    if sent["answers"]:
        text = f"receive_message sent {sent['answers'][:12]!r} back over the connection, but no process reads it."
        grade.reject("acknowledged", text)


def check_second_message(grade: Grade, sent: list[str]) -> None:
    if len(sent) == 2 and sent[1]:
        text = f"The first message was sent; sending a second over the same connection failed: {sent[1]}."
        grade.reject("connection-per-message", text)


def check_waiting(grade: Grade, sent: list[str], received: dict[str, Any], messages: dict[str, list[bytes]]) -> None:
    """Check five messages that are in the receiver's buffer before it begins to read."""
    expected, found = messages["waiting"], received["waiting"]
    if found[: len(expected)] == expected:
        return
    sizes = f"{len(expected)} messages of {', '.join(str(len(message)) for message in expected)} bytes were waiting."
    first = found[0]
    if isinstance(first, bytes) and len(first) >= sum(map(len, expected)):
        grade.reject("borders-are-kept", f"{sizes} Your first receive_message returned all {len(first)} bytes.")
    if first == expected[0]:
        text = f"{sizes} The first arrived; then {told(found[1:2])}: {num_lost(expected)} bytes were lost."
        grade.reject("rest-thrown-away", text)
    if came_byte_by_byte(received, messages):
        text = f"{sizes} receive_message returned {told(found)}. {BYTE_BY_BYTE}"
        grade.reject("rest-thrown-away", text)
    grade.reject("unknown", f"{sizes} {said(sent)}receive_message returned {told(found)}.")


BYTE_BY_BYTE = "From a socket that returns one byte per call, all arrived: some recv asks for too many bytes."


def came_byte_by_byte(received: dict[str, Any], messages: dict[str, list[bytes]]) -> bool:
    """True if the messages arrive from a socket that returns one byte per call, where no recv can read too much."""
    expected = messages["byte by byte"]
    return bool(received["byte by byte"][: len(expected)] == expected)


def check_slow_receiver(grade: Grade, received: dict[str, Any], messages: dict[str, list[bytes]]) -> None:
    """Check slow receivers, once the same messages arrived from sockets that return everything requested."""
    text = slow(received["slow receiver"], messages["slow receiver"], "recv returned at most 7 bytes per call")
    if text and came_byte_by_byte(received, messages):
        grade.reject("rest-thrown-away", f"{text} {BYTE_BY_BYTE}")
    if text:
        grade.reject("recv-gives-all", f"{text} From sockets that return all bytes in one call it arrived complete.")
    text = slow(received["byte by byte"], messages["byte by byte"], "recv returned one byte per call")
    if text:
        grade.reject("unknown", text)


def check_slow_sender(grade: Grade, sent: dict, received: dict, messages: dict) -> None:
    """Check slow senders, once the same messages arrived through sockets that accept everything."""
    text = slow(received["slow sender"], messages["slow sender"], "send accepted at most 7 bytes per call")
    last = sent["slow sender"][-1]  # a receiver that read a wrong length may close before the sender is done
    if text and last and not last.startswith(NETWORK_ERRORS):
        grade.reject("unknown", f"{text} {said(sent['slow sender'])}")
    if text:
        grade.reject("send-takes-all", f"{text} Through sockets that accept all bytes in one call it arrived complete.")


def slow(found: list[Any], expected: list[bytes], doing: str) -> str:
    """Describe the first message that did not arrive complete."""
    if found[: len(expected)] == expected:
        return ""
    good = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), len(found))
    return f"When {doing}, message {good + 1} of {len(expected[good])} bytes became {told(found[good : good + 1])}."


def check_end(grade: Grade, received: list[Any], messages: list[bytes]) -> None:
    """Check the end: the sender closes after the last message."""
    end = received[len(messages)]
    if end == b"":
        text = (
            f"{len(messages)} messages arrived, the sender closed, and receive_message returned b'', an empty message."
        )
        grade.reject("closed-is-empty", text)
    if isinstance(end, list):
        grade.reject("end-is-an-error", f"{len(messages)} messages arrived and the sender closed. Then: {end[1]}.")
    if end is not None:
        grade.reject(
            "unknown", f"The sender closed after its last message, and receive_message returned {told([end])}."
        )


def check_empty(grade: Grade, sent: list[str], received: list[Any], messages: list[bytes]) -> None:
    if received == [*messages, None]:
        return
    if received[0] is None:
        text = "The first message was empty, b''; receive_message returned None, as if the sender had closed."
        grade.reject("closed-is-empty", text)
    lengths = [len(message) for message in messages]
    if received == [*filter(None, messages), None]:
        text = (
            f"Messages of {lengths} bytes were sent; {len(received) - 1} of {len(messages)} arrived, but no empty one."
        )
        grade.reject("empty-is-nothing", text)
    grade.reject(
        "unknown", f"Messages of {lengths} bytes were sent; {said(sent)}receive_message returned {told(received)}."
    )


def check_any_bytes(grade: Grade, sent: dict, received: dict, messages: dict) -> None:
    """Explain a changed message, or one that is not valid text, by code that reads bytes as text."""
    expected, found = messages["any bytes"], received["any bytes"]
    changed = [(want, got) for got, want in zip(found, expected, strict=False) if got != want]
    in_step = found[257:258] == expected[257:258]  # a wrong message did not shift the next one
    if in_step and len([want for want, _ in changed if len(want) == 1]) > 1:
        text = f"{len(changed)} of {len(expected)} messages arrived changed, for example {changed[0][0]!r} as "
        grade.reject("bytes-are-text", f"{text}{told([changed[0][1]])}.")
    if any("Unicode" in str(said) for said in (sent["any bytes"][-1:], found[-1:])):
        text = f"{said(sent['any bytes'])}receive_message returned {len(found)} of {len(expected)} messages; "
        grade.reject("bytes-are-text", f"{text}the next was {expected[min(len(found), len(expected)) - 1]!r:.60}.")
    check_case(grade, "mark-in-the-data", "any bytes", sent, received, messages)


def check_case(grade: Grade, id: str, name: str, sent: dict, received: dict, messages: dict) -> None:
    expected, found = messages[name], received[name]
    if found == [*expected, None]:
        return
    pairs = zip(found, expected, strict=False)
    wrong = next((i for i, (got, want) in enumerate(pairs) if got != want), min(len(found), len(expected) - 1))
    got = told(found[wrong : wrong + 1])
    grade.reject(id, f"{said(sent[name])}The message {expected[wrong]!r:.60} became {got}.")


def check_large(grade: Grade, sent: dict, received: dict, messages: dict) -> None:
    expected, found = messages["large"], received["large"]
    if found == [*expected, None]:
        return
    text = f"A message of {len(expected[0]):,} bytes: {said(sent['large'])}receive_message returned {told(found[:1])}."
    failed = sent["large"][-1:] != [""] and not sent["large"][-1].startswith(NETWORK_ERRORS)
    cut_off = isinstance(found[0], bytes) and any(expected[0].startswith(found[0][skip:]) for skip in range(9))
    grade.reject("length-too-small" if failed or cut_off else "unknown", text + " Short messages arrived complete.")


NETWORK_ERRORS = ("ConnectionResetError", "BrokenPipeError", "TimeoutError", "OSError")


def check_torn(grade: Grade, torn: list[Any], on_the_wire: int, length: int) -> None:
    """Check a connection that closes after a part of a message."""
    if 2 * on_the_wire < length:
        grade.reject(
            "unknown", f"For a message of {length} bytes, {count(on_the_wire, 'byte')} were sent over the connection."
        )
    for cut, (found,) in torn:
        if isinstance(found, list) and found[0] == "ConnectionError":
            continue
        text = f"The connection closed after {cut} of the {on_the_wire} bytes of a message with its marks"
        if isinstance(found, list):
            grade.reject("unknown", f"{text}; receive_message should raise ConnectionError, but raised {found[1]}.")
        if found is None:
            text += "; receive_message returned None, as if the sender had closed after a complete message."
            grade.reject("torn-is-the-end", text)
        grade.reject("half-is-whole", f"{text}; receive_message returned {told([found])}, as if that were all.")


def check_two_connections(grade: Grade, received: list[Any], messages: list[bytes]) -> None:
    """Check two connections that carry alternate messages."""
    if received != messages:
        place = next((i for i, pair in enumerate(zip(received, messages, strict=False)) if pair[0] != pair[1]), 0)
        text = (
            f"Two connections were read in turn. Call {place + 1}, on the {('first', 'second')[place % 2]}, returned "
        )
        text += f"{told(received[place : place + 1])}; {len(messages[place])} bytes were sent there. "
        grade.reject("one-connection", text + "One connection at a time worked.")


def told(received: list[Any]) -> str:
    """Describe the received messages."""
    words = []
    for value in received[:6]:
        if isinstance(value, bytes):
            words.append(f"{count(len(value), 'byte')} ({value[:12]!r}{'...' if len(value) > 12 else ''})")
        else:
            words.append(value[1] if isinstance(value, list) else repr(value)[:60])
    return ", ".join(words) or "nothing"


def said(sent: list[str]) -> str:
    """Describe the sender's error, if it failed."""
    return f"send_message failed at message {len(sent)}: {sent[-1]}. " if sent and sent[-1] else ""


def num_lost(messages: list[bytes]) -> int:
    return sum(len(message) for message in messages[1:])
