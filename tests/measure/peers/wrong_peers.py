"""Wrong peers, each with a different mistake: the example with some lines replaced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import frog.measure.peers

EXAMPLES = Path(frog.measure.peers.__file__).parent / "examples"
_CALL = "    all_reduce(right, left, values)\n"
_WHOLE = "array(values.typecode, exchange(right, left, {}.tobytes(), len(values) * values.itemsize))"
_ADD = "array(values.typecode, map(add, values[take], come))"
_WRITE = '    Path(target + ".part").write_bytes(data[:24] + values.tobytes())\n'
_MEETS = """\
listener = create_server(("127.0.0.1", int(addresses[RANK][1])))
listener.settimeout(TIMEOUT_S)
right = create_connection((addresses[RIGHT][0], int(addresses[RIGHT][1])))
right.setblocking(False)
left, _ = listener.accept()
"""
_STAR = """\
def receive(connection, size):
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def all_reduce(peers, _, values):
    size = len(values) * values.itemsize
    if RANK:
        peers[0].sendall(values.tobytes())
        values[:] = array(values.typecode, receive(peers[0], size))
        return
    for rank in range(1, WORLD):
        values[:] = array(values.typecode, map(add, values, array(values.typecode, receive(peers[rank], size))))
    for rank in range(1, WORLD):
        peers[rank].sendall(values.tobytes())


left = None
if RANK:
    right = {0: create_connection((addresses[0][0], int(addresses[0][1])))}
    right[0].sendall(bytes([RANK]))
else:
    listener = create_server(("127.0.0.1", int(addresses[0][1])))
    come = [listener.accept()[0] for _ in range(1, WORLD)]
    right = {one.recv(1)[0]: one for one in come}
"""


@dataclass(frozen=True)
class Wrong:
    """A wrong peer: replacements for lines of the example, the check that must fail, and part of its message."""

    check: str
    finding: str
    changes: dict[str, str]
    says: str = ""
    """Part of the observation."""

    def source(self) -> str:
        text = (EXAMPLES / "ring.py").read_text()
        for old, new in self.changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text


def _instead(*lines: str) -> dict[str, str]:
    """Replace the line in which the example calls its all-reduce."""
    return {_CALL: "".join(f"    {line}\n" for line in lines)}


_SUMS_WHOLE_BUFFERS = _instead(
    "come = values",
    "for _ in range(WORLD - 1):",
    f"    come = {_WHOLE.format('come')}",
    "    values = array(values.typecode, map(add, values, come))",
)
_MEANS = "array(values.typecode, (type(v)(v / WORLD) for v in values))"
_PARTS = "slice(i * len(values) // WORLD, (i + 1) * len(values) // WORLD)"
_EVEN_PARTS = "slice(i * (len(values) // WORLD), (i + 1) * (len(values) // WORLD))"
_PAIRS = "zip(values[take], come)"
_AS_FLOATS = f"array(values.typecode, (type(a)(float(a) + float(b)) for a, b in {_PAIRS}))"
_AS_HALVES = f"array(values.typecode, (half(a + b) for a, b in {_PAIRS}))"
_HALF = """
import struct


def half(number):
    fraction = type(number) is float and number % 1
    return struct.unpack("e", struct.pack("e", number))[0] if fraction else number


addresses = ["""
_LOSES = 'raise ConnectionError("the peer was silent for too long, or closed the connection")'


def _writing(what: str) -> dict[str, str]:
    """Write other bytes as the result."""
    return {_WRITE: _WRITE.replace("data[:24] + values.tobytes()", what)}


WRONG = {
    "sums-neighbours": Wrong(
        "results",
        "neighbours-only",
        _instead(f"values = array(values.typecode, map(add, values, {_WHOLE.format('values')}))"),
        "the sum of only ranks 0 and 2",
    ),
    "keeps-its-own": Wrong("results", "not-reduced", _instead("pass")),
    "leaves-ranks-out": Wrong(
        "results",
        "some-ranks-only",
        _instead(f"values = {_WHOLE.format('values')}"),
    ),
    "averages": Wrong("results", "averaged", _instead(_CALL.strip(), f"values = {_MEANS}")),
    "forgets-the-remainder": Wrong(
        "results", "remainder", {_PARTS: _EVEN_PARTS}, "All but the last 262144 % 3 = 1 are correct."
    ),
    "order-of-its-own": Wrong("results", "ranks-differ", _SUMS_WHOLE_BUFFERS),
    "integers-as-floats": Wrong("results", "through-floats", {_ADD: _AS_FLOATS}, "int64"),
    "rounds-to-half": Wrong("results", "outside-bound", {_ADD: _AS_HALVES, "addresses = [": _HALF.strip()}),
    "stops-writing": Wrong("results", "half-written", _writing("data[:24] + values.tobytes()[:-4]")),
    "bare-numbers": Wrong("results", "not-a-buffer", _writing("values.tobytes()")),
    "another-dtype": Wrong("results", "wrong-dtype", _writing("data[:8] + bytes(8) + data[16:24] + values.tobytes()")),
    "another-count": Wrong("results", "wrong-count", _writing("data[:16] + bytes(8) + values.tobytes()")),
    "writes-nothing": Wrong("results", "no-result", {"    os.replace(target": "    # os.replace(target"}),
    "spoils-the-input": Wrong(
        "results", "input-changed", {"os.replace(target +": "os.remove(source), os.replace(target +"}
    ),
    "raises": Wrong("results", "crashed", _instead("raise KeyError(len(values))"), "KeyError"),
    "impatient": Wrong("results", "lost-nobody", _instead("sys.exit(f'lost {RIGHT}')"), "its last output: lost "),
    "says-it-has-none": Wrong("results", "no-operation", _instead("sys.exit(3)")),
    "leaves-a-process": Wrong(
        "results", "left-over", _instead(_CALL.strip(), "os.fork() or os.execlp('sleep', 'sleep', '600')")
    ),
    "prints-without-end": Wrong("results", "too-much-output", _instead("while True:", "    print('x' * 100000)")),
    "computes-without-end": Wrong("results", "never-ends", _instead("while True:", "    pass")),
    "forks": Wrong(
        "results",
        "too-many-processes",
        _instead("all(os.fork() for _ in range(40))", "select([], [], [], 600)"),
    ),
    "connects-each-time": Wrong(
        "connections", "connection-per-call", _instead(*_MEETS.splitlines()[2:], _CALL.strip())
    ),
    "through-rank-0": Wrong("ring", "through-one-rank", {_MEETS: _STAR}, "rank 0 moves 2,097,15"),
    "whole-buffers": Wrong("ring", "whole-buffers", _SUMS_WHOLE_BUFFERS),
    "sends-first": Wrong(
        "large", "deadlock", {"[left] * (len(come) < size)": "[left] * (len(come) < size and not rest)"}
    ),
    "reads-short": Wrong(
        "short-reads", "short-read", {"come += data": "come += data.ljust(size - len(come), bytes(1))"}
    ),
    "waits-for-the-dead": Wrong("killed-peer", "hangs-after-loss", {_LOSES: "pass"}),
    "deaf-to-silence": Wrong("cut-link", "hangs-after-loss", {"[], TIMEOUT_S)": "[], None)"}),
    "writes-first": Wrong(
        "killed-peer", "result-before-complete", _instead("Path(target).write_bytes(data)", _CALL.strip())
    ),
    "takes-what-came": Wrong("killed-peer", "wrong-after-loss", {_LOSES: "return bytes(come.ljust(size, bytes(1)))"}),
    "names-nobody": Wrong("reset-link", "loss-unnamed", {'f"lost {peer}"': '"the connection is gone"'}),
    "names-another": Wrong("killed-peer", "wrong-loss", {'f"lost {peer}"': 'f"lost {1 - RANK}"'}),
}
