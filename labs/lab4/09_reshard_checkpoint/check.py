"""Save in a world of three, load in a world of two, and compare with one process that was never interrupted."""

import math
from typing import NoReturn

import torch
from ranks import EPS, LR, MARK, OTHER_LR, STEPS, Model, described, train

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

SAVERS, LOADERS = 3, 2


def check(grade: Grade) -> None:
    case = {"seed": grade.seed % 10**6}
    saved = grade.world(SAVERS, case, work="save", seconds=20.0)
    check_sent(grade, saved, case)
    loaded = grade.world(LOADERS, case | {"folder": str(saved.folder)}, work="load", seconds=20.0)
    expected = oracle(case)
    for rank, (first, second) in enumerate(loaded.values):
        check_loaded(grade, rank, first, expected, case)
        check_background(grade, rank, second, expected, case)
    if any(rank["done"] for rank in saved.values):
        grade.reject(
            "blocks", "When start_saving returned, the checkpoint was complete: training waited until it was written."
        )
    measure(grade, saved, loaded, expected)


def oracle(case):
    """Train one process; return its state when the checkpoint is saved, and its weights one step later."""
    model = Model(case["seed"])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, eps=EPS)
    for step in range(STEPS):
        train(model, optimizer, case["seed"], step)
    state = described(model, optimizer)
    train(model, optimizer, case["seed"], STEPS)
    return state | {"after": described(model, optimizer)["weights"]}


def parts_of(state):
    """Return all tensors of a state by name: weights, buffers, and moments."""
    moments = {f"{key} of {name}": v for name, one in state["moments"].items() for key, v in one.items()}
    return {**state["weights"], **moments}


def same(one, other):
    return (
        isinstance(one, torch.Tensor) and one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    )


def differing(found, expected):
    return [name for name, value in expected.items() if not same(found.get(name), value)]


def listed(names):
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


# ---- the checkpoint of save ------------------------------------------------------------------------------------------


def check_sent(grade, world, case):
    """Reject a save that sends tensors to other ranks: each rank can write what it has."""
    (mark,) = [n for n, call in enumerate(world.calls[0]) if call.numel == MARK and "int8" in call.dtype]
    calls = [call for call in world.calls[0][mark + 1 :] if call.num_bytes]
    total, whole = sum(call.num_bytes for call in calls), sum(4 * p.numel() for p in Model(case["seed"]).parameters())
    if total > 0.1 * whole / SAVERS:
        what = f"{count(len(calls), 'collective')} (first {calls[0].line})"
        grade.reject(
            "gathers-everything",
            f"World of {SAVERS}: to save, rank 0 sent {total:,} bytes of tensors in {what}. Its shard of the "
            f"weights has {whole // SAVERS:,}.",
        )


def check_loaded(grade, rank, found, expected, case):
    where = f"Saved by {SAVERS} ranks, loaded by {LOADERS}, rank {rank}"
    if wrong := differing(found["weights"], expected["weights"]):
        explain_weights(grade, where, wrong, found, expected, case)
    right, own = parts_of(expected), parts_of(found)
    if wrong := differing(own, right):
        says = (
            f"{where}: the weights are right, but not {count(len(wrong), 'tensor')} of the optimizer ({listed(wrong)})."
        )
        if not any("exp_avg" in key for key in found["saved"]) and found["saved"]:
            says += f" The checkpoint has {count(len(found['saved']), 'tensor')}, none of them a moment."
            grade.reject("no-optimizer", says)
        gone = [name for name in wrong if own.get(name) is None or not own[name].any()]
        if len(gone) == len(right) - len(expected["weights"]):
            text = "The checkpoint contains them" if found["saved"] else "They are zero or absent"
            grade.reject("moments-not-loaded", f"{says} {text}; after load they are as in a new optimizer.")
        grade.reject("unknown", says)
    if found["lrs"] != expected["lrs"]:
        says = f"{where}: the learning rate is {found['lrs'][0]:g}; the optimizer that was saved had {LR:g}"
        if found["lrs"] == [OTHER_LR]:
            grade.reject("settings-lost", f"{says}, and the one that load was given {OTHER_LR:g}.")
        grade.reject("unknown", f"{says}.")
    check_step(grade, where, found["step"])
    if wrong := differing(found["after"], expected["after"]):
        grade.reject("unknown", f"{where}: after one more step, {listed(wrong)} differ from those of one process.")


def check_step(grade, where, step):
    value = step.item() if isinstance(step, torch.Tensor) and step.numel() == 1 else step
    if value == STEPS:
        return
    says = f"{where}: load returned the step {value!r}; {STEPS} was saved."
    grade.reject("step-lost" if value in (0, None) else "unknown", says)


def explain_weights(grade, where, wrong, found, expected, case) -> NoReturn:
    model = Model(case["seed"] + 1)
    new = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    untouched = [name for name in wrong if same(found["weights"].get(name), new[name].detach())]
    says = f"{where}: {len(wrong)} of {len(expected['weights'])} parameters and buffers differ from those saved"
    says += f" ({listed(wrong)})."
    if untouched == wrong:
        says += " They are still those of the new model."
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        for id, names in (
            ("frozen-left-out", frozen),
            ("buffers-left-out", ["num_seen"]),
            ("parameters-only", [*frozen, "num_seen"]),
            ("loaded-elsewhere", [name for name in new if name != "num_seen"]),
            ("loaded-elsewhere", list(new)),
        ):
            if sorted(wrong) == sorted(names):
                grade.reject(id, says)
    grade.reject("unknown", says)


# ---- the checkpoint of start_saving ----------------------------------------------------------------------------------


def check_background(grade, rank, found, expected, case):
    """Explain a checkpoint with tensors that changed, by 1, after start_saving had returned."""
    right, own = parts_of(expected), parts_of(found)
    wrong = differing(own, right)
    if not wrong:
        check_step(grade, "The checkpoint of start_saving", found["step"])
        return
    later = [name for name in wrong if same(own.get(name), right[name] + 1.0)]
    frozen = [name for name, p in Model(case["seed"]).named_parameters() if not p.requires_grad]
    could = len(right) - len(frozen)
    says = (
        f"The checkpoint of start_saving, loaded by {LOADERS}, rank {rank}: of {could} tensors that training changed "
    )
    says += f"after start_saving had returned, {len(later)} have the values from after the change ({listed(later)})"
    if later == wrong and len(later) == could:
        grade.reject("no-copy", f"{says}.")
    if later == wrong:
        kept = [name for name in right if name not in later and name not in frozen]
        grade.reject("torn", f"{says}; {listed(kept)} {'has' if len(kept) == 1 else 'have'} those from before.")
    name = next(name for name in wrong if name not in later)
    grade.compare(own.get(name), right[name], f"{name}, from the checkpoint of start_saving", rtol=1e-4, atol=1e-5)
    grade.reject("unknown", f"The checkpoint of start_saving: {name} is not what it was when start_saving was called.")


# ---- after a pass ----------------------------------------------------------------------------------------------------


def measure(grade, saved, loaded, expected):
    files = [path for path in (saved.folder / "first").glob("*.distcp") if not path.is_symlink()]
    sizes = ", ".join(f"{path.lstat().st_size:,}" for path in sorted(files))
    grade.measured("bytes in the ranks' files, with names and headers", sizes or "no .distcp files")
    off = max(
        (a - expected["after"][name]).abs().max().item()
        for rank in loaded.values
        for name, a in rank[0]["after"].items()
    )
    grade.measured("one more step, in a world of two and in one process", f"weights differ by up to {off:.1e}")
    whole = sum(weight.numel() for name, weight in expected["weights"].items() if name != "num_seen")
    numel = sum(loaded.values[0][0]["saved"].values()) or math.nan
    if not math.isnan(numel):
        grade.measured("tensors in the checkpoint", f"{numel / whole:.2f} times the elements of the weights")
    grade.predicted("share", (numel if not math.isnan(numel) else 3 * whole) / SAVERS / whole)
    grade.predicted("copies", (numel if not math.isnan(numel) else 3 * whole) / whole)
