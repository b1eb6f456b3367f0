"""Run real loaders with real workers, one for each rank and epoch; compare each worker's numbers with all others'."""

import itertools
import json
import random
import sys
from typing import Any, TypedDict

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

NARROW = [(0, 0), (0, 1), (0, 3), (0, 5), (0, 10), (0, 100), (1, 0), (1, 1), (10, 0), (100, 0)]
WIDE = [(0, 0), (0, 1), (1, 0)]
"""(epoch, rank) of each loader, with two and with eleven workers, where sums of small multiples collide."""
SOURCES = ("random", "numpy", "torch", "dataset.rng")

DRIVE = """
import gc, itertools, json, os, random, sys, traceback, warnings
gc.disable()  # it would scan all of torch while torch loads
import numpy, torch
from torch.utils.data import get_worker_info
gc.enable()
gc.freeze()  # the same in the workers, whose memory a scan would copy

class Noisy:
    def __init__(self):
        self.rng = numpy.random.default_rng(7)

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        noise = [random.random(), numpy.random.random(), torch.rand((), dtype=torch.float64).item(), self.rng.random()]
        return [i, get_worker_info().id, *noise]

warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than the machine has cores

def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value

def states():
    return [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]

def drawn(case):
    random.seed(case["process"]); numpy.random.seed(case["process"]); torch.manual_seed(case["process"])
    for _ in range(case["moved"]):
        random.random(), numpy.random.random(), torch.rand(3)
    before = states()
    loader = make_loader(Noisy(), case["indices"], num_workers=case["workers"], **case["names"])
    after = states()
    changed = [name for name, a, b in zip(("random", "numpy", "torch"), before, after) if a != b]
    returned = itertools.islice(loader, len(case["indices"]) + 12)
    samples = [[plain(value) for value in one] if isinstance(one, list | tuple) else plain(one) for one in returned]
    return {"changed": changed, "samples": samples}

if __name__ == "__main__":
    cases = json.load(open("cases.json"))
    try:
        from loader import make_loader
        found = [drawn(case) for case in cases]
    except BaseException as error:
        own = [step for step in traceback.extract_tb(error.__traceback__) if step.filename.endswith("loader.py")]
        where = f" (loader.py, line {own[-1].lineno})" if own else ""
        found = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}{where}"
    with open("found.json", "w") as file:
        json.dump(found, file, default=repr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skip Python's teardown of torch
"""


class Loaded(TypedDict):
    """The numbers that one process's loader returned, and the sources whose state it changed."""

    changed: list[str]
    samples: list[Any]


def draw_cases(seed):
    """Draw loaders with two workers (the last three set up differently) and with eleven, and the one repeated."""
    draw = random.Random(seed)
    base = draw.randrange(1000, 100_000)

    def case(epoch, rank, workers):
        names = {"seed": base, "epoch": epoch, "rank": rank}
        indices = draw.sample(range(10_000), max(8, 2 * workers))
        return {"names": names, "indices": indices, "workers": workers, "process": base, "moved": 0}

    narrow = [case(*place, 2) for place in NARROW]
    repeated = draw.randrange(1, len(narrow))
    again = narrow[repeated] | {"moved": 1}
    resumed = again | {"process": base + 5, "moved": draw.randint(2, 5)}
    other = narrow[0] | {"names": narrow[0]["names"] | {"seed": base + 77}}
    return [*narrow, again, resumed, other], [case(*place, 11) for place in WIDE], repeated


def run(grade, cases, fork):
    files = {"drive.py": DRIVE, "cases.json": json.dumps(cases)}
    env = {"PYTHONHASHSEED": str(random.Random(json.dumps(cases)).randrange(1, 2**32))}
    done = grade.program([sys.executable, "drive.py"], files=files, env=env, seconds=20.0, fork=fork)
    recorded = grade.records(done, "found.json", str | list[Loaded])
    if not recorded:
        said = (done.err or done.out).strip().splitlines()
        grade.reject(
            "exited", f"The process ended with exit code {done.code}. The last line of its output: {said[-1:]}"
        )
    found = recorded[0]
    if isinstance(found, str):
        grade.reject("raised", f"make_loader, or one of its workers, raised {found}.")
    return found


def check(grade: Grade) -> None:
    cases, wide, repeated = draw_cases(grade.seed)
    found = checked(grade, cases, fork=True)
    streams = streams_of(cases[: len(NARROW)], found[: len(NARROW)])
    check_streams(grade, streams)
    again, resumed, other = found[-3:]
    later, *found_wide = checked(grade, [cases[repeated], *wide], fork=False)  # another PYTHONHASHSEED
    for where, one in (
        ("a process that had drawn numbers before", again),
        ("a process with a different seed", resumed),
        ("another process", later),
    ):
        check_repeated(grade, cases[repeated], found[repeated]["samples"], one["samples"], where)
    if alike(streams[0, 0, 0], streams_of(cases[-1:], [other])[0, 0, 0]):
        seeds = f"{cases[0]['names']['seed']} and {cases[-1]['names']['seed']}"
        grade.reject("seed-has-no-say", f"Rank 0, epoch 0: the seeds {seeds} gave the same noise.")
    of_many = streams_of(wide, found_wide)
    check_streams(grade, of_many)
    grade.measured("streams of noise", f"{len(streams)}, from {len(NARROW)} loaders of two workers")
    grade.measured("streams of noise, eleven workers per loader", f"{len(of_many)}, from {len(WIDE)} loaders")
    grade.predicted("streams", len({rank + worker for rank in range(4) for worker in range(3)}))
    grade.note("Noise from (seed, epoch, sample) would depend neither on the number of workers nor on the world.")


def checked(grade, cases, fork):
    """Check the samples that one process's loaders returned, and that its own random state is unchanged."""
    found = run(grade, cases, fork)
    if len(found) != len(cases):
        text = f"found.json, in which the check records results, has {count(len(found), 'loader')}"
        grade.reject("unknown", f"{text} instead of {len(cases)}.")
    for case, one in zip(cases, found, strict=True):
        check_samples(grade, case, one["samples"])
        if one["changed"]:
            words = ", ".join(one["changed"])
            grade.reject("seeds-the-process", f"{named(case)}: make_loader changed the process's own state of {words}.")
    return found


def named(case):
    return f"Rank {case['names']['rank']}, epoch {case['names']['epoch']}"


def check_samples(grade, case, samples):
    for sample in samples:
        check_one(grade, case, sample)
    read = [int(sample[0]) for sample in samples]
    if read != case["indices"]:
        words = f"{named(case)}: the sampler gave {case['indices'][:4]} …, but the loader returned {read[:4]} …"
        grade.reject("samples-changed", f"{words}, {len(read)} of {len(case['indices'])} samples.")


def check_one(grade, case, sample):
    """Reject unless the loader returned what `dataset[i]` returns: six numbers."""
    is_six = isinstance(sample, list) and len(sample) == 6
    if is_six and all(isinstance(value, int | float) and abs(value) < 1e9 for value in sample):
        return
    if is_six and all(isinstance(value, list) and len(value) > 0 for value in sample):
        batch = count(len(sample[0]), "sample")
        words = f"the loader returned a batch of {batch}: its first element is {sample[0][:4]}, not a number"
        grade.reject("batched", f"{named(case)}: {words}.")
    words = f"dataset[i] returns a list of six numbers, but the loader returned {str(sample)[:60]}"
    grade.reject("samples-changed", f"{named(case)}: {words}.")


def streams_of(cases, found):
    """Map (epoch, rank, worker) to the numbers that the worker drew: a set for each source."""
    streams = {}
    for case, one in zip(cases, found, strict=True):
        for sample in one["samples"]:
            key = (case["names"]["epoch"], case["names"]["rank"], int(sample[1]))
            for source, value in zip(streams.setdefault(key, [set() for _ in SOURCES]), sample[2:], strict=True):
                source.add(value)
    return streams


def alike(one, other):
    """Return the sources from which both workers drew a common number."""
    return [name for name, a, b in zip(SOURCES, one, other, strict=True) if a & b]


def check_streams(grade, streams):
    """Reject equal streams. Pairs that differ in one thing only come first: the seed does not depend on it."""
    pairs = sorted(itertools.combinations(sorted(streams), 2), key=lambda pair: differences(*pair))
    for one, other in pairs:
        if not (sources := alike(streams[one], streams[other])):
            continue
        words = f"{place(one)} and {place(other)} drew the same numbers from {' and '.join(sources)}."
        if sources == ["dataset.rng"] and everywhere(streams):
            grade.reject("own-generator-copied", f"{words} So did every other pair of workers.")
        ids = {(False, False, True): "workers-alike", (False, True, False): "ranks-alike"}
        ids[True, False, False] = "epochs-alike"
        if id := ids.get(tuple(a != b for a, b in zip(one, other, strict=True))):
            grade.reject(id, words)
        grade.reject(
            "sums-collide", f"{words} Workers that differ in only one of rank, worker and epoch drew different numbers."
        )


def everywhere(streams):
    return all("dataset.rng" in alike(a, b) for a, b in itertools.combinations(streams.values(), 2))


def differences(one, other):
    pattern = [a != b for a, b in zip(one, other, strict=True)]
    return sum(pattern), not pattern[2], not pattern[1]


def place(key):
    epoch, rank, worker = key
    return f"Rank {rank}, worker {worker}, epoch {epoch}"


def check_repeated(grade, case, before, now, where):
    for sample, again in zip(before, now, strict=True):
        for name, a, b in zip(SOURCES, sample[2:], again[2:], strict=True):
            if a != b:
                grade.reject(
                    "not-repeatable",
                    f"{named(case)}, sample {int(sample[0])}: {name} gave {a:.6f} here, but {b:.6f} in {where}.",
                )
