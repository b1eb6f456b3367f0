"""The shares of all ranks against the rules, and their lengths against torch's DistributedSampler."""

import itertools
import random
from collections import Counter

from torch.utils.data import DistributedSampler

from frog.grader.grade import Grade

NAMES = ["torch", "random", "numpy"]
PREDICTED = {"num_samples": 1000, "world_size": 16, "drop_last": False}


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
    found = grade.call({"cases": cases}).values[0]
    for case, shares in zip(cases, found["shares"], strict=True):
        check_split(grade, case, [rank[2] for rank in shares])
    for case, shares in zip(cases[:2], found["shares"][:2], strict=True):
        check_epochs(grade, case, shares)
    if [share for _, share in rank_shares(found["other seed"], 0)] == [
        share for _, share in rank_shares(found["shares"][0], 2)
    ]:
        grade.reject("seed-has-no-say", "Two seeds gave the same order of epoch 0 on all ranks.")
    check_states(grade, *found["states"])
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
    grade.note("Padding repeats samples: an evaluation that counts them twice changes with the size of the world.")


def rank_shares(shares, epoch):
    return [rank[epoch] for rank in shares]


def check_split(grade, case, shares):
    num, size, drop = case["num_samples"], case["world_size"], case["drop_last"]
    setting = f"{num} samples, {size} ranks, drop_last={drop}"
    expected = len(DistributedSampler(range(num), num_replicas=size, rank=0, drop_last=drop))
    taken = Counter(sample for _, share in shares for sample in share)
    twice = {sample for sample, count in taken.items() if count > 1}
    lengths = [len(share) for _, share in shares]
    strange = sorted(set(taken) - set(range(num)))
    if strange:
        grade.reject("unknown", f"{setting}: sample {strange[0]} was taken, and there is none of that number.")
    if size > 1 and all(length == num for length in lengths) and num > 2:
        grade.reject("everyone-takes-all", f"{setting}: each rank takes all {num}.")
    padding = 0 if drop else expected * size - num
    if len(twice) > padding and num > size:
        where = [rank for rank, (_, share) in enumerate(shares) if min(twice) in share]
        missing = num - len(taken)
        if drop and len(twice) == -num % size and missing == 0:
            grade.reject("drop-last-pads", f"{setting}: {len(twice)} samples were taken twice, {sorted(twice)}.")
        grade.reject(
            "ranks-shuffle-apart",
            f"{setting}: {len(twice)} samples were taken more than once (sample {min(twice)} by ranks {where}), "
            f"{missing} by nobody.",
        )
    if len(set(lengths)) > 1:
        id = "padding-too-short" if num < size else "uneven-shares"
        grade.reject(id, f"{setting}: the ranks take {lengths} samples.")
    if lengths[0] != expected:
        says = f"{setting}: each rank takes {lengths[0]} samples, not {expected}; {num - len(taken)} are left out."
        id = "drops-too-much" if lengths[0] < expected else "drop-last-pads" if drop else "unknown"
        grade.reject(id, says)
    if not drop and len(taken) < num:
        grade.reject("drops-too-much", f"{setting}: {num - len(taken)} samples were taken by nobody.")
    most = max(taken.values(), default=0)
    if not drop and most - min(taken.values()) > 1:
        often = max(taken, key=taken.__getitem__)
        grade.reject("pads-with-one", f"{setting}: sample {often} was taken {most} times, others once.")
    told = [length for length, _ in shares]
    if told != lengths:
        grade.reject("unknown", f"{setting}: len() says {told}, the ranks took {lengths}.")


def check_epochs(grade, case, shares):
    size = case["world_size"]
    setting = f"{case['num_samples']} samples, {size} ranks"
    first, second, epoch_0, epoch_1, epoch_2, again = ([rank[n][1] for rank in shares] for n in range(6))
    if first != epoch_0 and again != epoch_1:
        grade.reject(
            "random-state-moves-on",
            f"{setting}: on rank 0 set_epoch(1) gave {epoch_1[0][:4]} …, and later {again[0][:4]} …; "
            f"a new sampler gave {first[0][:4]} …, and after set_epoch(0) {epoch_0[0][:4]} ….",
        )
    if first != second or first != epoch_0:
        grade.reject(
            "counts-epochs-itself",
            f"{setting}: two epochs without set_epoch, and then set_epoch(0), should have one order. Rank 0 took "
            f"{first[0][:4]} …, then {second[0][:4]} …, then {epoch_0[0][:4]} ….",
        )
    if again != epoch_1:
        grade.reject(
            "counts-epochs-itself",
            f"{setting}: set_epoch(1) gave {epoch_1[0][:4]} … on rank 0, and later {again[0][:4]} ….",
        )
    dealt = [list(range(case["num_samples"]))[rank::size] for rank in range(size)]
    if all(share == sorted(share) for share in epoch_0) or [s[: len(dealt[-1])] for s in epoch_0] == dealt:
        grade.reject("not-shuffled", f"{setting}: rank 0 takes {epoch_0[0][:6]} …: they come as they are numbered.")
    if epoch_0 == epoch_1 or epoch_1 == epoch_2:
        grade.reject("epoch-ignored", f"{setting}: rank 0 takes {epoch_0[0][:4]} … in epochs 0, 1 and 2.")
    if all(set(a) == set(b) for a, b in zip(epoch_0, epoch_1, strict=True)):
        grade.reject(
            "shuffles-own-share",
            f"{setting}: the order changes, but rank 0 takes the same {len(set(epoch_0[0]))} samples each time.",
        )
    before, after = neighbours(epoch_0), neighbours(epoch_1)
    if 2 * len(before & after) > len(before):
        grade.reject(
            "begins-elsewhere",
            f"{setting}: of {len(before)} pairs that follow each other on a rank in epoch 0, {len(before & after)} "
            "do so in epoch 1 too.",
        )


def neighbours(epoch):
    """The pairs of samples that some rank takes one after the other; of two drawn orders about one is common."""
    return {frozenset(pair) for share in epoch for pair in itertools.pairwise(share)}


def check_states(grade, before, after):
    changed = []
    for name, old, new in zip(NAMES, before, after, strict=True):
        same = old.equal(new) if name == "torch" else old == new
        if not same:
            changed.append(name)
    if changed:
        grade.reject(
            "seeds-the-process",
            f"After one epoch of samples the process's random state is another ({', '.join(changed)}).",
        )
