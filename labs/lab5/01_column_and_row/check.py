"""Compare the pair of layers, and a model with several of them, with the whole layers in one process."""

import random
from typing import NoReturn

import torch
from ranks import MARK, STEPS, Model, make_inputs, make_pair, run_pair, train

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

PREDICTED = {"batch": 2, "length": 32, "width": 48, "inner": 192, "bias": True, "residual": False}


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    pair, stack = draw_cases(draw, grade.seed % 1_000_000)
    with_residual = pair | {"seed": pair["seed"] + 1, "residual": True, "bias": False}
    narrow = pair | {"seed": pair["seed"] + 2, "inner": 2}  # the first of three ranks has no part of it
    predicted = PREDICTED | {"kind": "pair", "seed": pair["seed"] + 3}
    first = run_world(grade, 2, [pair, with_residual, stack | {"seed": stack["seed"] + 4}])
    run_world(grade, 3, [pair, with_residual, narrow, stack], others=[predicted])
    sent, _ = bytes_of_cases(first)[0]
    grade.measured("world of 2: bytes of weights on a rank", "{:,} of {:,}".format(*held(first, pair)))
    grade.measured("bytes that a rank sends in forward and backward of the pair", f"{sent:,.0f}")


def draw_cases(draw, seed):
    """Draw sizes that neither 2 nor 3 divides."""
    sizes = {
        "seed": seed,
        "batch": draw.choice([1, 3]),
        "length": draw.choice([5, 7]),
        "width": draw.choice([5, 7]),
        "inner": draw.choice([35, 37]),
    }
    pair = {"kind": "pair", "bias": True, "residual": False}
    return sizes | pair, sizes | {"kind": "stack", "inner": 13, "vocabulary": draw.choice([11, 17])}


def run_world(grade, size, cases, others=()):
    world = grade.world(size, {"cases": [*cases, *others]}, seconds=4.0)
    for n, case in enumerate([*cases, *others]):
        found = [rank[n] for rank in world.values]
        if case["kind"] == "pair":
            judge_pair(grade, world, case, found)
        else:
            judge_stack(grade, size, case, found)
    for n, case in enumerate([*cases, *others]):
        judge_bytes(grade, world, n, case)
    if others:
        grade.predicted("bytes-sent", bytes_of_cases(world)[len(cases)][0])
    return world


def held(world, case):
    up, down = make_pair(case)
    return world.values[0][0]["bytes"]["up.weight"] + world.values[0][0]["bytes"]["down.weight"], 4 * (
        up.weight.numel() + down.weight.numel()
    )


# ---- one pair --------------------------------------------------------------------------------------------------------


def part(width, rank, size):
    return slice(rank * width // size, (rank + 1) * width // size)


def cut(name, whole, rank, size):
    """Return a rank's part of a parameter of the pair, or of its gradient."""
    if whole is None or name.endswith("down.bias"):
        return whole
    if name.endswith("down.weight"):
        return whole[:, part(whole.shape[1], rank, size)]
    return whole[part(whole.shape[0], rank, size)]


def close(found, expected):
    if found is None or expected is None:
        return found is expected
    if found.shape != expected.shape:
        return False
    largest = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def all_close(found, expected):
    return all(close(a, b) for a, b in zip(found, expected, strict=True))


def judge_pair(grade, world, case, found):
    size = world.size
    up, down = make_pair(case)
    where = f"World of {size}, widths {case['width']} and {case['inner']}"
    judge_layout(grade, where, size, found, {"up": up, "down": down})
    judge_waits(grade, where, world)
    right = run_pair(up, down, case)
    if not all_close([one["y"] for one in found], [right["y"]] * size):
        explain_output(grade, where, [one["y"] for one in found], right["y"], case)
    for name in ("down.weight", "down.bias", "up.weight", "up.bias"):
        expected = [cut(name, right["gradients"][name], rank, size) for rank in range(size)]
        if not all_close([one["gradients"][name] for one in found], expected):
            explain_gradient(grade, f"{where}: the output is right, but", name, found, expected)
    if not all_close([one["x.grad"] for one in found], [right["x.grad"]] * size):
        explain_input(grade, where, found, right, case)


def judge_layout(grade, where, size, found, layers):
    """Check what each rank holds."""
    for rank, one in enumerate(found):
        for layer, whole in layers.items():
            name, expected = f"{layer}.weight", cut(f"{layer}.weight", whole.weight.detach(), rank, size)
            weight, num_bytes = one["parameters"][name], one["bytes"][name]
            says = f"{where}, rank {rank}: the {'column' if layer == 'up' else 'row'}-parallel layer's weight has "
            if weight.numel() == whole.weight.numel() != expected.numel():
                says += f"all {weight.numel():,} numbers of the whole weight; its part has {expected.numel():,}."
                grade.reject("not-divided", says)
            grade.compare(weight, expected, f"{where}, rank {rank}: {name}, divided by {size} ranks")
            if num_bytes >= 4 * whole.weight.numel() > 4 * expected.numel() and expected.numel():
                says += f"{expected.numel():,} numbers, and its storage {num_bytes:,} bytes: those of the whole weight."
                grade.reject("slice-is-a-view", says)
    biases, whole = [one["parameters"]["down.bias"] for one in found], layers["down"].bias
    if whole is not None and not all_close(biases, [whole.detach()] * size):
        explain_bias(grade, where, biases, whole.detach())
    for rank, one in enumerate(found):
        expected = cut("up.bias", layers["up"].bias, rank, size)
        expected = None if expected is None else expected.detach()
        grade.compare(one["parameters"]["up.bias"], expected, f"{where}, rank {rank}: the bias of the column layer")


def explain_bias(grade, where, biases, whole) -> NoReturn:
    size = len(biases)
    if all_close(biases, [whole / size] * size):
        text = f"{where}: on each rank, the row-parallel layer's bias is 1/{size} of the whole layer's."
        grade.reject("bias-in-parts", f"{text} Its first number is {biases[0][0]:.4g}; it should be {whole[0]:.4g}.")
    having = [rank for rank, bias in enumerate(biases) if close(bias, whole)]
    missing = [rank for rank, bias in enumerate(biases) if bias is None or not bias.any()]
    if having and len(having) + len(missing) == size:
        text = f"{where}: rank {having[0]} has the row-parallel layer's bias, rank {missing[0]} "
        grade.reject("bias-on-one-rank", f"{text}{'has none' if biases[missing[0]] is None else 'has zeros'}.")
    rank = next(rank for rank, bias in enumerate(biases) if not close(bias, whole))
    grade.reject_different(biases[rank], whole, f"{where}, rank {rank}: the bias of the row layer")


def judge_waits(grade, where, world):
    for rank, calls in enumerate(world.calls):
        started = [call for call in calls if call.is_async]
        waited = sum(call.waited for call in started)
        if waited < len(started):
            text = f"{where}, rank {rank}: you started {count(len(started), 'operation')} and waited for {waited}."
            grade.reject("not-waited", f"{text} The numbers of the other ranks had not arrived.")


def explain_output(grade, where, found, right, case) -> NoReturn:
    """Find what was added, from the parts that each rank computes."""
    size, (x_BTD, _), (up, down) = len(found), make_inputs(case), make_pair(case)
    h_BTF = torch.tanh(up(x_BTD)).detach()
    slices = [part(case["inner"], rank, size) for rank in range(size)]
    parts = [h_BTF[..., one] @ down.weight.detach()[:, one].T for one in slices]
    rest = x_BTD if case["residual"] else torch.zeros_like(x_BTD)
    bias = torch.zeros(case["width"]) if down.bias is None else down.bias.detach()
    total, many = sum(parts), size * x_BTD
    summed = down(torch.tanh(up(many))).detach()
    ways = {
        "bias-on-every-rank": ([rest + total + size * bias] * size, f"The bias is in it {size} times."),
        "never-summed": ([rest + one + bias for one in parts], "It is this rank's part of the sum."),
        "never-summed.2": ([rest + one for one in parts], "It is this rank's part of the sum, without the bias."),
        "mean-of-parts": ([rest + total / size + bias] * size, f"The sum of the products is divided by {size}."),
        "mean-of-parts.2": ([rest + (total + bias) / size] * size, f"It is the right one divided by {size}."),
        "mean-of-parts.3": ([rest + total / size + size * bias] * size, f"The sum is divided by {size}."),
        "bias-forgotten": ([rest + total] * size, "The bias is not in it."),
        "sums-the-input": ([rest + summed] * size, f"It is the output for {size} times the input."),
        "sums-the-input.2": ([many + summed] * size, f"It is the output for {size} times the input."),
    }
    rank = next(rank for rank, y in enumerate(found) if not close(y, right))
    for id, (values, text) in ways.items():
        if all_close(found, values):
            grade.reject(id.split(".")[0], f"{where}, rank {rank}: the output is not the whole layers'. {text}")
    grade.reject_different(found[rank], right, f"{where}, rank {rank}: the output")


def explain_gradient(grade, says, name, found, expected) -> NoReturn:
    """Explain a wrong gradient of a parameter, from its ratio to the right one."""
    size, gradients = len(found), [one["gradients"][name] for one in found]
    missing = [rank for rank, gradient in enumerate(gradients) if gradient is None]
    if missing and name == "down.bias" and len(missing) < size:
        text = f"{says} rank {missing[0]} has no gradient of the row-parallel layer's bias, and another rank has one."
        grade.reject("bias-on-one-rank", text)
    for factor, text in ((size, f"{size}.000 times"), (1 / size, f"1/{size} of")):
        if all_close(gradients, [None if g is None else g * factor for g in expected]):
            text = f"{says} the gradient of {name} is {text} the whole layer's."
            if name == "down.bias":
                grade.reject("bias-gradient-scaled", text)
            grade.reject("summed-again" if factor > 1 else "gradient-divided", text)
    rank = next(rank for rank, pair in enumerate(zip(gradients, expected, strict=True)) if not close(*pair))
    grade.reject_different(gradients[rank], expected[rank], f"{says} the gradient of {name} on rank {rank}")


def explain_input(grade, where, found, right, case) -> NoReturn:
    """Explain a wrong gradient of the pair's input."""
    size, (x_BTD, gradient_BTD) = len(found), make_inputs(case)
    rest = gradient_BTD if case["residual"] else torch.zeros_like(x_BTD)
    parts = input_parts(case, size)
    total, gradients = sum(parts), [one["x.grad"] for one in found]
    says = f"{where}: the output and the weights' gradients are right, but the gradient of the input is not."
    ways = {
        "input-gradient-in-parts": ([rest + one for one in parts], "Each rank has the part from its own outputs."),
        "gradient-divided": ([rest + total / size] * size, f"The sum over the ranks is divided by {size}."),
        "gradient-divided.2": ([rest + one / size for one in parts], f"It is each rank's part, divided by {size}."),
        "residual-counted-again": (
            [size * rest + total] * size,
            f"The residual connection, which adds x to the output, is in it {size} times.",
        ),
    }
    for id, (values, text) in ways.items():
        if all_close(gradients, values):
            grade.reject(id.split(".")[0], f"{says} {text}")
    rank = next(rank for rank, g in enumerate(gradients) if not close(g, right["x.grad"]))
    grade.reject_different(gradients[rank], right["x.grad"], f"{says} On rank {rank}, it")


def input_parts(case, size):
    """Return the part of the input's gradient that each rank computes."""
    (x_BTD, gradient_BTD), (up, down) = make_inputs(case), make_pair(case)
    h_BTF = torch.tanh(up(x_BTD)).detach()
    inner_BTF = (gradient_BTD @ down.weight.detach()) * (1 - h_BTF.square())
    slices = [part(case["inner"], rank, size) for rank in range(size)]
    return [inner_BTF[..., one] @ up.weight.detach()[one] for one in slices]


# ---- several pairs ---------------------------------------------------------------------------------------------------


def judge_stack(grade, size, case, found):
    """Compare gradients and weights of two steps; the pairs alone are right."""
    right = train(Model(case), case)
    for step in range(STEPS):
        for rank, one in enumerate(found):
            where = f"World of {size}, a model of three blocks, step {step + 1}, rank {rank}: the gradient of"
            judge_tensors(grade, where, one["gradients"][step], right["gradients"][step], rank, size)
    for rank, one in enumerate(found):
        where = f"World of {size}, a model of three blocks, rank {rank}, after {STEPS} steps:"
        weights = {name: p.detach() for name, p in right["weights"].items()}
        judge_tensors(grade, where, one["weights"], weights, rank, size)


def judge_tensors(grade, where, found, right, rank, size):
    for name, whole in right.items():
        expected = cut(name, whole, rank, size) if ".up." in name or ".down." in name else whole
        if not close(found.get(name), expected):
            grade.reject_different(found.get(name), expected, f"{where} {name}")


# ---- bytes -----------------------------------------------------------------------------------------------------------


def bytes_of_cases(world):
    """Return, for each case, the bytes that rank 0 sends in a ring, and its calls."""
    cases = [[]]
    for call in world.calls[0]:
        if call.numel == MARK and "int8" in call.dtype:
            cases.append([])
        else:
            cases[-1].append(call)
    return [(sum(sent(call, world.size) for call in calls), calls) for calls in cases]


def sent(call, size):
    """Return the bytes that a rank sends in a ring."""
    if "all_reduce" in call.op:
        return 2 * (size - 1) / size * call.num_bytes
    return call.num_bytes * (size - 1 if "all_gather" in call.op else (size - 1) / size)


def judge_bytes(grade, world, n, case):
    """Compare the bytes of a pair with one all-reduce in forward and one in backward."""
    if case["kind"] != "pair" or case["inner"] < 4 * case["width"]:
        return
    found, calls = bytes_of_cases(world)[n]
    numel = case["batch"] * case["length"] * case["width"]
    expected = 2 * 2 * (world.size - 1) / world.size * 4 * numel
    says = (
        f"World of {world.size}: the numbers are right. In forward and backward of the pair, a rank sends "
        f"{found:,.0f} bytes with {count(len(calls), 'operation')}; two all-reduces of x take {expected:,.0f}."
    )
    if found >= 1.95 * expected:
        num_bytes = 4 * numel // case["width"] * case["inner"]
        large = [call for call in calls if call.num_bytes * (world.size if "gather" in call.op else 1) >= num_bytes]
        text = f"{says} The activations between the layers have {num_bytes:,}."
        grade.reject("gathers-activations", text) if large else grade.reject("unknown", says)
    if found > 1.1 * expected and not grade.notes:
        grade.note(says)
