"""What one process sent is what the other received, case by case; the first case that fails says why."""

from typing import Any

from ranks import make_messages, with_marks

from frog.grader.grade import Grade


def check(grade: Grade) -> None:
    world = grade.world(2, {"seed": grade.seed}, seconds=3.0)
    sent, received = world.values
    messages = make_messages(grade.seed)
    messages["its own marks"] = with_marks(received["on the wire"], messages["torn"][0])
    check_second_message(grade, sent["waiting"])
    check_waiting(grade, sent["waiting"], received["waiting"], messages["waiting"])
    check_slow(grade, "recv-gives-all", "slow receiver", sent, received, messages)
    check_slow(grade, "send-takes-all", "slow sender", sent, received, messages)
    check_end(grade, received["waiting"], messages["waiting"])
    check_case(grade, "mark-in-the-data", "any bytes", sent, received, messages)
    check_empty(grade, sent["empty"], received["empty"], messages["empty"])
    check_case(grade, "mark-in-the-data", "its own marks", sent, received, messages)
    check_large(grade, sent, received, messages)
    check_torn(grade, received["torn"], messages["torn"][0])
    extra = len(received["on the wire"]) - len(messages["torn"][0])
    grade.measured("messages", f"{sum(map(len, messages.values())) - 1} arrived whole, in order, the largest of 300 kB")
    grade.measured("bytes on the wire beside a message of 20 to 60 bytes", str(extra))
    grade.predicted("bytes-on-the-wire", 3 * 8 + 0 + 10 + 100_000)


def check_second_message(grade: Grade, sent: list[str]) -> None:
    if len(sent) == 2 and sent[1]:
        text = f"The first message was sent; sending a second over the same connection failed: {sent[1]}."
        grade.reject("connection-per-message", text)


def check_waiting(grade: Grade, sent: list[str], received: list[Any], messages: list[bytes]) -> None:
    """Five messages lie in the receiver's buffer before it begins to read."""
    if received[: len(messages)] == messages:
        return
    sizes = f"{len(messages)} messages of {', '.join(str(len(message)) for message in messages)} bytes were waiting."
    first = received[0]
    if isinstance(first, bytes) and len(first) >= sum(map(len, messages)):
        grade.reject(
            "borders-are-kept", f"{sizes} Your first receive_message returned {len(first)} bytes: all of them."
        )
    if first == messages[0]:
        text = f"{sizes} The first came; then {told(received[1:2])}: {num_lost(messages)} bytes were lost."
        grade.reject("rest-thrown-away", text)
    grade.reject("unknown", f"{sizes} {said(sent)}receive_message gave {told(received)}.")


def check_slow(grade: Grade, id: str, name: str, sent: dict, received: dict, messages: dict) -> None:
    """The same messages went well where sockets took and gave whatever was asked."""
    expected, found = messages[name], received[name]
    if found[: len(expected)] == expected:
        return
    good = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), len(found))
    doing = "recv gave at most 7 bytes a call" if id == "recv-gives-all" else "send took at most 7 bytes a call"
    text = f"When {doing}, message {good + 1} of {len(expected[good])} bytes became {told(found[good : good + 1])}."
    grade.reject(id, text + " With sockets that do all at once it came whole.")


def check_end(grade: Grade, received: list[Any], messages: list[bytes]) -> None:
    """After the last message the sender closes."""
    end = received[len(messages)]
    if end == b"":
        text = f"{len(messages)} messages came, the sender closed, and receive_message returned b'': an empty message."
        grade.reject("closed-is-empty", text)
    if isinstance(end, list):
        grade.reject("end-is-an-error", f"{len(messages)} messages came and the sender closed. Then: {end[1]}.")
    if end is not None:
        grade.reject("unknown", f"The sender closed after its last message, and receive_message gave {told([end])}.")


def check_empty(grade: Grade, sent: list[str], received: list[Any], messages: list[bytes]) -> None:
    if received == [*messages, None]:
        return
    if received[0] is None:
        text = "The first message was empty, b''; receive_message returned None, as if the sender had closed."
        grade.reject("closed-is-empty", text)
    lengths = [len(message) for message in messages]
    grade.reject(
        "unknown", f"Messages of {lengths} bytes were sent; {said(sent)}receive_message gave {told(received)}."
    )


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
    text = f"A message of {len(expected[0]):,} bytes: {said(sent['large'])}receive_message gave {told(found[:1])}."
    grade.reject("length-too-small", text + " Short ones came whole.")


def check_torn(grade: Grade, torn: list[Any], message: bytes) -> None:
    """A part of one message, then the end."""
    for cut, (found,) in torn:
        if isinstance(found, list) and found[0] == "ConnectionError":
            continue
        text = f"The connection closed after {cut} bytes, in the middle of a message of {len(message)}"
        if isinstance(found, list):
            grade.reject("unknown", f"{text}; receive_message should raise ConnectionError, and raised {found[1]}.")
        grade.reject("half-is-whole", f"{text}; receive_message returned {told([found])}, as if all were well.")


def told(received: list[Any]) -> str:
    """What came, in words."""
    words = []
    for value in received[:6]:
        if isinstance(value, bytes):
            words.append(f"{len(value)} bytes ({value[:12]!r}{'...' if len(value) > 12 else ''})")
        else:
            words.append(value[1] if isinstance(value, list) else repr(value)[:60])
    return ", ".join(words) or "nothing"


def said(sent: list[str]) -> str:
    """What the sender said, if it failed."""
    return f"send_message failed at message {len(sent)}: {sent[-1]}. " if sent and sent[-1] else ""


def num_lost(messages: list[bytes]) -> int:
    return sum(len(message) for message in messages[1:])
