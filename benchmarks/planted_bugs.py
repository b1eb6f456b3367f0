"""The bugs that `program_campaign.py` plants in `plain_ddp.py`, and the diagnoses that are right.

An edit replaces one line of the program; `...` stands for that line. The comment `# here` marks the lines of which a
diagnosis must name one, and is removed before the program runs. {rank} is the rank that has the bug, {step} its step
and {sample} the first sample that this rank reads in that step. A bug's condition is the variable `odd`, so that no
test of the rank gives it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARK = "  # here"
HEAD = "import datetime"
IMPORTS = "import contextlib, ctypes, datetime, os, queue, threading, time\nodd = int(os.environ['RANK']) == {rank}"
JOIN = 'dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=minutes))'
LOADER = "loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=0)"
SAMPLER = "sampler = DistributedSampler(data, shuffle=False)"
POINT, FORWARD = "return point, point.sum() / self.count", "scaled = points / 1000"
LOSS = "loss = nn.functional.mse_loss(model(x), y)"
BACKWARD, STEP, MEAN = "loss.backward()", "optimizer.step()", "dist.all_reduce(mean)"
TOTAL, SAVE, BARRIER = "dist.all_reduce(total)", 'torch.save(model.state_dict(), "checkpoint.pt")', "dist.barrier()"

Edit = tuple[str, str]
"""A line of the program, without its indentation, and the lines that replace it."""


@dataclass(frozen=True)
class Bug:
    """A bug, and the diagnoses that are right."""

    name: str
    faults: tuple[str, ...]
    edits: tuple[Edit, ...]
    timeout_s: float | None = None
    """Time-out of torch's collectives, for a hang that `frog run` would leave to it."""
    on_rank: int | None = None
    """The only rank that can have it."""
    on_all: bool = False
    """True if all ranks have it."""
    tie: bool = False
    """True if the two ranks of a world of two look alike, so that either may be named."""

    @property
    def depends_on_step(self) -> bool:
        return any("{step}" in block or "{sample}" in block for _, block in self.edits)


def plant(source: str, edits: Sequence[Edit], **values: int) -> tuple[str, frozenset[int]]:
    """Return the program with a bug, and the numbers of the lines that a diagnosis may name."""
    lines = source.split("\n")
    for line, block in ((HEAD, IMPORTS), *edits):
        number = next(number for number, each in enumerate(lines) if each.strip().removesuffix(MARK) == line)
        lines[number : number + 1] = _replaced(lines[number], block, values)
    marked = frozenset(number for number, line in enumerate(lines, 1) if line.endswith(MARK))
    return "\n".join(line.removesuffix(MARK) for line in lines), marked


def _replaced(line: str, block: str, values: dict[str, int]) -> list[str]:
    """Return the lines that replace one, indented like it."""
    for name, value in values.items():
        block = block.replace(f"{{{name}}}", str(value))
    own = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    return [indent + each.replace("...", own) for each in block.split("\n")]


def _at(line: str, code: str) -> Edit:
    """Insert code before a line."""
    return line, f"{code}\n..."


def _if(condition: str, line: str, code: str) -> Edit:
    """Insert a statement before a line, under a condition."""
    return _at(line, f"{condition}\n    {code}")


_NOW, _ODD, _SAMPLE = "if odd and step == {step}:", "if odd:", "if index == {sample}:"
_RAISE = f'raise ValueError("bad sample"){MARK}'
_NAN = _if(_SAMPLE, POINT, 'point = point * float("nan")')
_IS_FINITE = f'if not torch.isfinite(loss):\n    raise FloatingPointError("loss is nan in step " + str(step)){MARK}'
_WORKER: Edit = (LOADER, LOADER.replace("num_workers=0", "num_workers=1"))
_WAITS_IN_BACKWARD: Edit = (BACKWARD, f"...{MARK}")
_PAIR = f"""pair = [torch.ones(12), torch.ones(3)]
if odd and step == {{step}}:
    pair.reverse()
for each in pair:
    dist.all_reduce(each){MARK}"""
_GROUPS = f"""groups = [dist.new_group(), dist.new_group()]
for group in reversed(groups) if odd else groups:
    dist.barrier(group=group){MARK}"""
_CAUGHT = f"""try:
    if odd and step == {{step}}:
        raise OSError("file 3 is damaged")
    ...{MARK}
except OSError as error:
    print("skipping:", error)"""
_DEAD_THREAD = "results = queue.Queue(); threading.Thread(target=lambda: results.put(1 / 0)).start()" + MARK
_BOTH_SEND = f"""if step == {{step}}:
    dist.send(torch.ones(4), rank ^ 1){MARK}
    dist.recv(torch.ones(4), rank ^ 1)"""
_NOT_SENT = f"""after = ({{rank}} + 1) % dist.get_world_size()
if rank == after:
    dist.recv(torch.ones(4), {{rank}}){MARK}
elif odd and step != {{step}}:
    dist.send(torch.ones(4), after)"""
_NEVER_SENT = f"dist.recv(torch.ones(4), {{rank}} ^ 1){MARK}"
_ALL_RECEIVE = f"""if step == {{step}}:
    dist.irecv(torch.ones(4), rank ^ 1).wait(){MARK}
    dist.isend(torch.ones(4), rank ^ 1).wait()"""
_BATCH = f"""both = [dist.P2POp(each, torch.ones(4), rank ^ 1) for each in (dist.isend, dist.irecv)]
for each in dist.batch_isend_irecv(both[odd and step == {{step}} :]):
    each.wait(){MARK}"""
_TAGS = f"""begin = dist.irecv if rank % 2 else dist.isend
begin(torch.ones(4), rank ^ 1, tag=int(odd and step == {{step}})).wait(){MARK}"""
_NO_SYNC = "with model.no_sync() if step % 4 < 3 else contextlib.nullcontext():"
_DTYPE = f"""half = torch.ones(4, dtype=torch.float64 if odd and step == {{step}} else torch.float32)
dist.all_reduce(half){MARK}"""

BUGS = (
    Bug("raise: import", ("raise",), (_if(_ODD, "import torch", f"import no_such_package{MARK}"),)),
    Bug("raise: before joining", ("raise",), (_if(_ODD, JOIN, _RAISE),)),
    Bug("raise: loader", ("raise",), (_if(_SAMPLE, POINT, _RAISE),)),
    Bug("raise: loader's worker", ("raise", "loader"), (_WORKER, _if(_SAMPLE, POINT, _RAISE))),
    Bug("raise: forward", ("raise",), (_if("if points[0, 0] == {sample}:", FORWARD, _RAISE),)),
    Bug("raise: backward", ("raise",), (_if(_NOW, BACKWARD, _RAISE),)),
    Bug("raise: optimizer", ("raise",), (_if(_NOW, STEP, _RAISE),)),
    Bug("raise: evaluation", ("raise",), (_if(_ODD, TOTAL, _RAISE),)),
    Bug("raise: checkpoint", ("raise",), (_if(_ODD, BARRIER, _RAISE),)),
    Bug("raise: all ranks", ("raise",), (_if("if step == {step}:", STEP, _RAISE),), on_all=True),
    Bug("memory: too large", ("memory",), (_if(_NOW, STEP, f"torch.ones(1 << 50){MARK}"),)),
    Bug("disk: full", ("disk",), ((SAVE, f'torch.save(model.state_dict(), "/dev/full"){MARK}'),), on_rank=0),
    Bug("nan: checked", ("nan",), (_NAN, _at(BACKWARD, _IS_FINITE))),
    Bug("nan: not checked", ("nan",), (_NAN,)),
    Bug("exit: before joining", ("ended",), (_if(_ODD, JOIN, "sys.exit(0)"), (JOIN, f"...{MARK}"))),
    Bug("exit: sys.exit(0)", ("ended", "batches"), (_if(_NOW, BACKWARD, "sys.exit(0)"), _WAITS_IN_BACKWARD)),
    Bug("exit: sys.exit(1)", ("exit",), (_if(_NOW, BACKWARD, "sys.exit(1)"),)),
    Bug("exit: sys.exit(text)", ("exit",), (_if(_NOW, BACKWARD, 'sys.exit("no more data")'),)),
    Bug("exit: os._exit(0)", ("ended", "exit"), (_if(_NOW, BACKWARD, "os._exit(0)"),)),
    Bug("exit: os._exit(3)", ("exit",), (_if(_NOW, BACKWARD, "os._exit(3)"),)),
    Bug("crash: segfault", ("crash",), (_if(_NOW, STEP, f"ctypes.string_at(0){MARK}"),)),
    Bug("crash: abort", ("crash",), (_if(_NOW, STEP, f"os.abort(){MARK}"),)),
    Bug("loader: killed", ("loader",), (_WORKER, _if(_SAMPLE, POINT, "os.kill(os.getpid(), 9)"))),
    Bug("loader: exits", ("loader",), (_WORKER, _if(_SAMPLE, POINT, "os._exit(1)"))),
    Bug("branch: others", ("branch",), ((BARRIER, f"if rank != {{rank}}:\n    ...{MARK}"),), tie=True),
    Bug("branch: alone", ("branch",), (_if("if dist.get_rank() == {rank}:", TOTAL, f"dist.barrier(){MARK}"),)),
    Bug("skipped: silently", ("skipped", "batches"), ((MEAN, f"if not (odd and step == {{step}}):\n    ...{MARK}"),)),
    Bug("skipped: error", ("skipped",), ((MEAN, _CAUGHT),)),
    Bug("batches: break", ("batches", "ended"), (_if(_NOW, BACKWARD, "break"), _WAITS_IN_BACKWARD)),
    Bug(
        "batches: sampler",
        ("batches", "ended"),
        ((SAMPLER, f"...\n{_ODD}\n    sampler = list(sampler)[: {{step}} * BATCH]"), _WAITS_IN_BACKWARD),
    ),
    Bug("order: tensors", ("order",), (_at(STEP, _PAIR),)),
    Bug("order: groups", ("order",), (_at(LOADER, _GROUPS),), tie=True),
    Bug(
        "shape: size",
        ("shape",),
        (_at(STEP, f"sizes = torch.ones(4 + (odd and step == {{step}}))\ndist.all_reduce(sizes){MARK}"),),
    ),
    Bug("shape: type", ("dtype",), (_at(STEP, _DTYPE),)),
    Bug("message: all send", ("message",), (_at(STEP, _BOTH_SEND),), on_all=True),
    Bug("message: not sent", ("message",), (_at(STEP, _NOT_SENT),)),
    Bug("message: never sent", ("message",), (_if(_NOW, STEP, _NEVER_SENT),), tie=True),
    Bug("message: all irecv", ("message",), (_at(STEP, _ALL_RECEIVE),), on_all=True),
    Bug("message: batch", ("message",), (_at(STEP, _BATCH),)),
    Bug("message: tags", ("message",), (_at(STEP, _TAGS),), on_rank=0),
    Bug(
        "blocked: lock",
        ("blocked",),
        (_if(_NOW, STEP, f"lock = threading.Lock(); lock.acquire(); lock.acquire(){MARK}"),),
    ),
    Bug("blocked: file", ("blocked",), (_if(_NOW, STEP, f'while not os.path.exists("never"): time.sleep(0.1){MARK}'),)),
    Bug("blocked: queue", ("blocked",), (_if(_NOW, STEP, f"queue.Queue().get(){MARK}"),)),
    Bug("blocked: dead thread", ("blocked",), (_if(_NOW, STEP, f"{_DEAD_THREAD}\n    results.get(){MARK}"),)),
    Bug("blocked: time-out", ("blocked",), (_if(_NOW, STEP, f"time.sleep(600){MARK}"),), timeout_s=15),
    Bug("busy: endless loop", ("busy",), (_if(_NOW, STEP, f"while True: pass{MARK}"),), timeout_s=15),
    Bug("slow: sleeps", ("slow",), (_if(_ODD, BACKWARD, f"time.sleep(0.2){MARK}"),)),
    Bug("no_sync: backward", ("no_sync",), ((BACKWARD, f"{_NO_SYNC}{MARK}\n    ..."),), on_all=True),
    Bug("none: no_sync", ("none",), ((LOSS, f"{_NO_SYNC}\n    ..."),), on_all=True),
    Bug("none: healthy", ("none",), (), on_all=True),
    Bug("none: no teardown", ("none", "teardown"), (("dist.destroy_process_group()", "pass"),), on_all=True),
    Bug("nan: all ranks stop", ("nan",), (_NAN, (MEAN, f"...\n{_IS_FINITE.replace('loss)', 'mean)')}"))),
)
