"""Compare the shares of all ranks with the rules, and their lengths with torch's DistributedSampler."""

import itertools
import json
import random
import sys
from collections import Counter

from torch.utils.data import DistributedSampler

from frog.learn.grader.grade import Grade

NAMES = ["torch", "random", "numpy"]
PREDICTED = {"num_samples": 1000, "world_size": 16, "drop_last": False}
EPOCHS = [0, 1, 2, 1, 3, 4]
PROGRAM = """
import json, sys
from sampler import ShardedSampler
case = json.loads(sys.argv[1])
size = case.pop("world_size")
samplers = [ShardedSampler(world_size=size, rank=rank, **case) for rank in range(size)]
print(json.dumps([[int(sample) for sample in sampler] for sampler in samplers]))
"""


def draw_cases(seed):
    draw = random.Random(seed)
    world = draw.randint(3, 5)
    shapes = [
        (world * draw.randint(20, 30), world, False),  # divides
        (world * draw.randint(20, 30) + draw.randint(1, world - 1), world, False),
        (world * draw.randint(20, 30) + draw.randint(1, world - 1), world, True),
        (world * draw.randint(20, 30), world, True),
        (2, 5, False),
        (2, 5, True),
        (draw.randint(30, 60), 1, False),
        (1000, 16, False),
    ]
    return [
        {"num_samples": num, "world_size": size, "drop_last": drop, "seed": draw.randrange(2**20)}
        for num, size, drop in shapes
    ]


def check(grade: Grade) -> None:
    cases = draw_cases(grade.seed)
    found = grade.call({"cases": cases, "epochs": EPOCHS}).values[0]
    splits = list(zip(cases, found["shares"], strict=True))
    is_tiny = [case["num_samples"] < case["world_size"] for case in cases]
    check_splits(grade, [one for one, tiny in zip(splits, is_tiny, strict=True) if not tiny])
    check_states(grade, *found["states"])
    for case, shares in splits[:2] + splits[-1:]:  # the last one has the most padding
        check_epochs(grade, case, shares)
    check_splits(grade, [one for one, tiny in zip(splits, is_tiny, strict=True) if tiny])
    check_rest(grade, cases[1], found["shares"][1], "taken twice", "pads-with-the-same")
    check_rest(grade, cases[2], found["shares"][2], "left out", "drops-the-same")
    if [share for _, share in rank_shares(found["other seed"], 0)] == [
        share for _, share in rank_shares(found["shares"][0], 2)
    ]:
        grade.reject("seed-has-no-say", "Two seeds gave the same order of epoch 0 on all ranks.")
    check_processes(grade, cases[1], [share for _, share in rank_shares(found["shares"][1], 0)])
    if "Tensor" in found["kinds"]:
        grade.reject("yields-tensors", "Iterating over the sampler yielded values of type torch.Tensor, not int.")
    length, taken = Counter(), Counter()
    for rank in found["shares"][-1]:
        length[rank[2][0]] += 1
        taken.update(rank[2][1])
    twice = sum(count - 1 for count in taken.values())
    grade.measured(
        "1000 samples over 16 ranks", f"{len(taken)} taken, {twice} of them twice, {1000 - len(taken)} never"
    )
    grade.predicted("share", max(length))
    grade.predicted("padding", twice)
    grade.note("Padding repeats samples: an evaluation that counts them twice changes with the world size.")


def rank_shares(shares, epoch):
    return [rank[epoch] for rank in shares]


def check_splits(grade, found):
    for case, shares in found:
        is_stable = rank_shares(shares, 0) == rank_shares(shares, 2)  # else what a sampler drew may look like anything
        check_split(grade, case, rank_shares(shares, 2), is_stable)


def check_split(grade, case, shares, is_stable):
    num, size, drop = case["num_samples"], case["world_size"], case["drop_last"]
    setting = f"{num} samples, {size} ranks, drop_last={drop}"
    expected = len(DistributedSampler(range(num), num_replicas=size, rank=0, drop_last=drop))
    taken = Counter(sample for _, share in shares for sample in share)
    twice = {sample for sample, count in taken.items() if count > 1}
    lengths = [len(share) for _, share in shares]
    strange = sorted(set(taken) - set(range(num)))
    if strange:
        grade.reject(
            "unknown", f"{setting}: a rank takes sample {strange[0]}, but the samples are numbered 0 to {num - 1}."
        )
    if size > 1 and all(length == num for length in lengths) and num > 2:
        grade.reject("everyone-takes-all", f"{setting}: each rank takes all {num}.")
    padding = 0 if drop else expected * size - num
    if len(twice) > padding and num > size:
        where = [rank for rank, (_, share) in enumerate(shares) if min(twice) in share]
        missing = num - len(taken)
        if drop and len(twice) == -num % size and missing == 0:
            grade.reject("drop-last-pads", f"{setting}: {len(twice)} samples were taken twice, {sorted(twice)}.")
        text = f"{setting}: {len(twice)} samples were taken more than once (sample {min(twice)} by ranks {where}), "
        same, opposite = common_order([share for _, share in shares])
        id = "ranks-shuffle-apart" if opposite else "shares-overlap" if same else "unknown"
        grade.reject(id, f"{text}{missing} were not taken.")
    if len(set(lengths)) > 1:
        id = "padding-too-short" if num < size else "uneven-shares"
        grade.reject(id, f"{setting}: the ranks take {lengths} samples.")
    if lengths[0] != expected:
        says = f"{setting}: a share has length {lengths[0]}, not {expected}; {num - len(taken)} samples are dropped."
        id = "unknown"
        if lengths[0] < expected and not drop:
            id = "drops-too-much"
        elif lengths[0] == -(-num // size) and drop:
            id = "drop-last-pads"
        grade.reject(id, says)
    if not drop and len(taken) < num:
        grade.reject("drops-too-much", f"{setting}: no rank takes {num - len(taken)} of the samples.")
    most = max(taken.values(), default=0)
    if not drop and is_stable and most - min(taken.values()) > 1:
        often, rarely = (choose(taken, key=taken.__getitem__) for choose in (max, min))
        text = f"{most - taken[rarely]} times more often than sample {rarely}"
        grade.reject("pads-with-one", f"{setting}: sample {often} was taken {text}.")
    told = [length for length, _ in shares]
    if told != lengths:
        grade.reject("unknown", f"{setting}: len() returns {told}, but the ranks take {lengths} samples.")


def common_order(shares):
    """Count the pairs of samples that two ranks both take: those in the same order, and those in different orders."""
    same = opposite = 0
    for first, second in itertools.combinations(shares, 2):
        places = [(first.index(sample), second.index(sample)) for sample in set(first) & set(second)]
        for (a, b), (c, d) in itertools.combinations(places, 2):
            same, opposite = (same + 1, opposite) if (a < c) == (b < d) else (same, opposite + 1)
    return same, opposite


def check_rest(grade, case, shares, what, id):
    """Check that the samples taken twice, or left out, differ between epochs."""
    rests = []
    for n in range(2, 2 + len(EPOCHS)):
        taken = Counter(sample for _, share in rank_shares(shares, n) for sample in share)
        rests.append(
            [s for s in range(case["num_samples"]) if (taken[s] > 1 if not case["drop_last"] else not taken[s])]
        )
    if all(rest == rests[0] for rest in rests):
        setting = f"{case['num_samples']} samples, {case['world_size']} ranks, drop_last={case['drop_last']}"
        epochs = f"each of the epochs {min(EPOCHS)} to {max(EPOCHS)}"
        grade.reject(id, f"{setting}: in {epochs}, samples {rests[0]} were {what}.")


def check_processes(grade, case, expected):
    """Check that samplers in separate processes give the same order."""
    setting = f"{case['num_samples']} samples, {case['world_size']} ranks"
    world = grade.world(case["world_size"], case, work="own_share", join=False)
    same_for_all(grade, setting, world.values, expected)
    if "hash" in grade.text("sampler.py"):  # Python's hash of a string differs between interpreters
        words = [sys.executable, "program.py", json.dumps(case)]
        env = {"PYTHONHASHSEED": str(grade.seed % 1000 + 1)}
        ended = grade.program(words, env=env, files={"program.py": PROGRAM}, seconds=15.0)
        if ended.code:
            grade.reject("unknown", f"A new Python process could not use the sampler: {ended.err[-300:]}")
        same_for_all(grade, setting, json.loads(ended.out.splitlines()[-1]), expected)


def same_for_all(grade, setting, found, expected):
    for rank, (share, other) in enumerate(zip(found, expected, strict=True)):
        if share != other:
            grade.reject(
                "differs-by-process",
                f"{setting}: with equal arguments, rank {rank}'s sampler gives a different order in another process: "
                f"{first_difference(other, share)}.",
            )


def first_difference(a, b):
    """Describe the first position at which two lists of samples differ."""
    place = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    x, y = (f"sample {one[place]}" if place < len(one) else "nothing" for one in (a, b))
    return f"at position {place} it has {x}, then {y}"


def without_last(shares):
    return [share[:-1] for share in shares]


def check_epochs(grade, case, shares):
    size = case["world_size"]
    setting = f"{case['num_samples']} samples, {size} ranks"
    first, second, epoch_0, epoch_1, epoch_2, again = ([rank[n][1] for rank in shares] for n in range(6))
    pairs = [
        (first, epoch_0, "set_epoch(0) on a used sampler gives"),
        (epoch_1, again, "the second set_epoch(1) gives"),
    ]
    moved = [(a, b, what) for a, b, what in pairs if a != b]
    if any(len(share) == 0 for share in second):
        grade.reject(
            "one-iterator",
            f"{setting}: the second loop over rank 0's sampler, without set_epoch in between, gave "
            f"{len(second[0])} samples; the first gave {len(first[0])}.",
        )
    is_padded = case["num_samples"] % size > 0
    if moved and is_padded and all(without_last(a) == without_last(b) for a, b, _ in pairs):
        grade.reject("padding-drawn-again", f"{setting}: {differences(moved)}.")
    if len(moved) == 2:
        grade.reject("random-state-moves-on", f"{setting}: {differences(moved)}.")
    if first != second:
        moved.append((first, second, "a second loop without set_epoch gives"))
    if moved:
        grade.reject("counts-epochs-itself", f"{setting}: {differences(moved)}.")
    dealt = [list(range(case["num_samples"]))[rank::size] for rank in range(size)]
    if all(share == sorted(share) for share in epoch_0) or [s[: len(dealt[-1])] for s in epoch_0] == dealt:
        grade.reject("not-shuffled", f"{setting}: rank 0 takes {epoch_0[0][:6]} …: the samples are in numerical order.")
    if epoch_0 == epoch_1 or epoch_1 == epoch_2:
        which = "0 and 1" if epoch_0 == epoch_1 else "1 and 2"
        grade.reject("epoch-ignored", f"{setting}: all ranks take the same samples in epochs {which}.")
    if all(set(a) == set(b) for a, b in zip(epoch_0, epoch_1, strict=True)):
        grade.reject(
            "shuffles-own-share",
            f"{setting}: the order changes, but rank 0 takes the same {len(set(epoch_0[0]))} samples each time.",
        )
    moves = Counter(
        (b - a) % case["num_samples"] for x, y in zip(epoch_0, epoch_1, strict=True) for a, b in zip(x, y, strict=True)
    )
    step, often = moves.most_common(1)[0]
    if 2 * often > moves.total():
        text = f"{often} of {moves.total()} sample numbers of epoch 1 are those of epoch 0 plus {step}"
        grade.reject("begins-elsewhere", f"{setting}: {text} (modulo {case['num_samples']}).")
    before, after = neighbours(epoch_0), neighbours(epoch_1)
    if 2 * len(before & after) > len(before):
        grade.reject(
            "begins-elsewhere",
            f"{setting}: {len(before)} pairs follow each other on a rank in epoch 0, and {len(before & after)} of them "
            "do so in epoch 1 too.",
        )


def differences(moved):
    """Describe orders that should be equal but differ: for each pair of epochs, on the first rank that differs."""
    texts = []
    for before, after, what in moved:
        rank = next(rank for rank, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
        texts.append(f"{what} rank {rank} a different order ({first_difference(before[rank], after[rank])})")
    return "; ".join(texts)


def neighbours(epoch):
    """Return the pairs of samples that some rank takes consecutively; two random orders share about one."""
    return {frozenset(pair) for share in epoch for pair in itertools.pairwise(share)}


def check_states(grade, *runs):
    """Explain a changed random state. If different states before give the same state after, the sampler seeded it."""
    (before, after), (_, other) = runs
    changed = [n for n in range(len(NAMES)) if not is_same(before[n], after[n])]
    if changed:
        names = ", ".join(NAMES[n] for n in changed)
        seeded = all(is_same(after[n], other[n]) for n in changed)
        text = "After one epoch of samples the process's random state has changed"
        grade.reject("seeds-the-process" if seeded else "draws-from-the-process", f"{text} ({names}).")


def is_same(a, b):
    return a == b if isinstance(a, list) else a.equal(b)
