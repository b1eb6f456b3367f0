"""The formula behind each number of a plan, with its values put in (`frog plan MODEL --explain`).

Each `sum` is arithmetic that anyone can repeat; a test evaluates it and compares it with the plan's own number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frog.plan.estimate.budget import CHECKPOINT_BYTES, Budget, num_nodes
from frog.plan.estimate.kernels import BLOCK
from frog.plan.estimate.layer_time import part_of
from frog.plan.estimate.nearest import WIDER, nearest_runs, typical_error
from frog.plan.estimate.predict import least_spread, spread_of
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.step_time import HOST_BYTES, OPTIMIZER_BYTES, StepModel, idle_share
from frog.plan.estimate.utilization import losses, peak_flops, utilization
from frog.plan.layout import largest_of_normal
from frog.plan.links import Group
from frog.plan.memory import (
    ALLOCATOR_SHARE,
    CONTEXT_BYTES,
    FUSED_LOGIT_BYTES,
    LOGIT_BYTES,
    PARALLEL_LOGIT_BYTES,
    Memory,
    activations_in_flight,
    gathered_bytes,
    gathered_parameters,
    kept_activations,
    kept_tensors,
    layer_activations,
    layer_input,
    loss_bytes,
    state_bytes,
    updated_parameters,
)

LEAST_SHARE = 0.0005
"""Shares of the step below this print as 0.0 %, and are left out."""


@dataclass(frozen=True)
class Term:
    """One number: its name, its formula in letters, the same in numbers, and its value."""

    name: str
    formula: str
    sum: str
    value: float
    unit: str
    source: str = ""


def explain_step(step: StepModel) -> Iterator[Term]:
    """Yield the terms of a step's time, in the order of the report."""
    layout, constants = step.layout, step.constants
    heaviest, _ = step.stages
    whole = step.step
    rate = step.kernels.product_rate / 1e12
    yield Term("rate of products", "best measured product x constant `product`", *_rate(step), "TFLOP/s")
    rows = layout.tokens
    for inner, columns in _layer_products(step):
        flops, seconds = 2 * rows * inner * columns, step.kernels.product(rows, inner, columns)
        efficiency = flops / seconds / step.kernels.product_rate
        yield Term(
            f"product {rows} x {inner:.0f} x {columns:.0f}",
            "2 r i c / (rate x size efficiency)",
            f"2 * {rows} * {inner:g} * {columns:g} / ({_n(rate)}e12 * {_n(efficiency)}) * 1e3",
            seconds * 1e3,
            "ms",
            "roofline, Williams et al. 2009",
        )
    yield from _explain_head(step)
    yield from _explain_layer(step)
    yield from _explain_backward(step)
    yield from _explain_fat_tree(step)
    m = layout.num_micro
    for name, value in vars(heaviest.total).items():
        if value:
            parts = " + ".join(_n(getattr(p, name)) for p in (heaviest.forward, heaviest.backward, heaviest.recomputed))
            formula = "m x (forward + backward + recomputed) of the heaviest stage"
            yield Term(_CAUSES[name], formula, f"{m} * ({parts})", value * m, "s")
    if layout.pp > 1:
        sends = step.sends
        yield Term(
            "pipeline bubble",
            "(other stages + (p - 1) x messages) / v x idle share",
            f"({_n(step.other_stages)} + ({layout.pp} - 1) * {_n(sends)}) / {layout.virtual_stages} * "
            f"{_n(idle_share(layout))}",
            whole.bubble,
            "s",
            "Narayanan et al. 2021",
        )
        yield _explain_messages(step)
    if step.data != (0.0, 0.0):
        yield _explain_data(step)
    if layout.offload_optimizer:
        yield _explain_offloaded(step)
    yield _explain_optimizer(step)
    before = whole.total - whole.other
    yield Term(
        "fixed time, waiting",
        "step_s + jitter x doublings of nodes x the rest",
        f"{constants.step_s} + {constants.jitter} * {_n(step.doublings)} * {_n(before)}",
        whole.other,
        "s",
    )
    flops = step.model_flops
    yield Term(
        "step",
        "sum of the causes",
        " + ".join(_n(seconds) for seconds in vars(whole).values()),
        whole.total,
        "s",
    )
    yield Term(
        "tokens per second",
        "global batch x sequence / step",
        f"{layout.global_batch} * {layout.seq_len} / {_n(whole.total)}",
        layout.global_batch * layout.seq_len / whole.total,
        "",
    )
    yield Term(
        "MFU",
        "model FLOPs per token x tokens / (step x GPUs x peak)",
        f"{_n(flops)} * {layout.global_batch} * {layout.seq_len} / "
        f"({_n(whole.total)} * {layout.num_gpus} * {_n(peak_flops(step))})",
        utilization(step),
        "",
        "Chowdhery et al. 2022",
    )


def _explain_optimizer(step: StepModel) -> Term:
    shared, experts = step.optimizer_parameters
    formula = f"{OPTIMIZER_BYTES} bytes x parameters of the rank / memory rate"
    total = f"{OPTIMIZER_BYTES} * ({_n(shared)} + {_n(experts)}) / {_n(step.kernels.memory_rate)}"
    if offloaded := step.layout.offload_optimizer:
        formula += " of those on the GPU + transfers and update of the others"
        total += f" * (1 - {offloaded:g}) + {_n(step.offloaded)}"
    return Term("optimizer", formula, total, step.optimizer, "s")


def _explain_offloaded(step: StepModel) -> Term:
    layout, cluster, constants = step.layout, step.cluster, step.constants
    numbers = _n(layout.offload_optimizer * sum(step.optimizer_parameters))
    each = layout.traits.gradient_bytes + 2
    ranks = min(cluster.gpus_per_node, layout.num_gpus)
    return Term(
        "optimizer on the host",
        "(gradient + 2) bytes x parameters / host link + bytes of Adam x parameters x ranks of a node / host memory",
        f"{each} * {numbers} / ({_n(cluster.host_link or 0)} * {constants.link}) + "
        f"{HOST_BYTES} * {numbers} * {ranks} / ({_n(cluster.host_memory or 0)} * {constants.memory})",
        step.offloaded,
        "s",
        "Ren et al. 2021",
    )


def _explain_layer(step: StepModel) -> Iterator[Term]:
    """Yield the terms of one layer's forward pass that are not products: attention, memory, tensor parallelism."""
    model, layout = step.model, step.layout
    forward = step.layers.layer(mixture=bool(model.moe_layers)).forward
    dims = (model.head_dim, model.value_dim or model.head_dim)
    if layout.traits.attention != "scores":
        heads, queries = layout.micro_batch * model.heads / layout.tp, layout.seq_len / layout.cp
        keys = model.mean_keys(layout.seq_len)
        flops = 2.0 * heads * queries * 0.5 * (keys + BLOCK) * sum(dims)
        yield Term(
            "attention, one layer forward",
            "causal: 2 x heads x queries x (keys + a block) / 2 x (key + value width) / (rate x size efficiency)",
            f"2 * {heads:g} * {queries:g} * 0.5 * ({_n(keys)} + {BLOCK}) * {sum(dims)} / "
            f"{_n(flops / forward.attention)} * 1e3",
            forward.attention * 1e3,
            "ms",
            "Dao 2023",
        )
    yield Term(
        "memory-bound operations, one layer forward",
        "bytes / memory rate",
        f"{_n(forward.memory * step.kernels.memory_rate)} / {_n(step.kernels.memory_rate)} * 1e3",
        forward.memory * 1e3,
        "ms",
    )
    if model.moe_layers:
        yield from _explain_experts(step)
    if layout.tp > 1:
        group = Group(layout.tp, 1)
        num_bytes = step.layers.stream_bytes
        seconds, latency = step.links.all_reduce(num_bytes, group), step.links.all_reduce(0, group)
        inside, link = group.inside(step.links.domain), step.links.link
        moved, formula = f"({inside} - 1) / {inside} / {_n(link)}", "(n - 1)/n / link"
        if inside < group.size:
            domains, network = -(-group.size // inside), step.links.ring_network(group)
            moved = f"max({moved}, ({domains} - 1) / {domains} / {_n(network)})"
            formula = "larger of (k - 1)/k / link for the k ranks of a node and (d - 1)/d / network for d nodes"
        yield Term(
            "all-reduce of tensor parallelism",
            f"2 x bytes x {formula} + latency of the hops",
            f"(2 * {_n(num_bytes)} * {moved} + {_n(latency)}) * 1e3",
            seconds * 1e3,
            "ms",
            "Thakur et al. 2005",
        )


def _explain_experts(step: StepModel) -> Iterator[Term]:
    """Yield the rows of an expert, and what the ranks that split it gather."""
    model, layout, layers = step.model, step.layout, step.layers
    if layout.ep > 1 and layout.capacity_factor is None and layout.imbalance is None:
        rows = f"({layout.tokens} / {layout.tp} * {layout.expert_split} * {model.experts_per_token})"
        yield Term(
            "load of the rank with most rows",
            "1 + largest of ep normal numbers x sqrt((experts - k) / (experts - 1) / rows of a rank)",
            f"1 + {_n(largest_of_normal(layout.ep))} * (({model.experts} - {model.experts_per_token}) / "
            f"({model.experts} - 1) / {rows}) ** 0.5",
            layers.expert_load,
            "",
            "random choices",
        )
    yield Term(
        "rows of an expert in a micro-batch",
        "tokens / tp x ep x expert tp x experts per token / experts x load",
        f"{layout.tokens} / {layout.tp} * {layout.ep} * {layout.expert_split} * {model.experts_per_token} / "
        f"{model.experts} * {_n(layers.expert_load)}",
        layers.expert_rows,
        "",
    )
    if num_bytes := layers.gathered_row_bytes:
        yield Term(
            "rows that the ranks of an expert gather",
            "2 bytes x tokens / tp x expert tp x experts per token x hidden x load",
            f"2 * {layout.tokens} / {layout.tp} * {layout.expert_split} * {model.experts_per_token} * {model.hidden} * "
            f"{_n(layers.expert_load)}",
            num_bytes,
            "bytes",
        )
        seconds = step.links.gather(num_bytes, Group(layout.expert_split, 1))
        yield Term(
            "gather of these rows, and reduce-scatter of the sums, one layer forward",
            "2 x the seconds of one",
            f"2 * {_n(seconds * 1e3)}",
            2 * seconds * 1e3,
            "ms",
            "Megatron-Core, `MoEAlltoAllTokenDispatcher`",
        )


def _explain_head(step: StepModel) -> Iterator[Term]:
    """Yield the product that computes the logits, of one micro-batch."""
    rows, inner, columns = step.layout.tokens, step.model.hidden, step.model.vocab / step.layout.tp
    flops, seconds = 2 * rows * inner * columns, step.head.forward.products
    yield Term(
        "product of the logits, forward",
        "2 x tokens x hidden x vocabulary / tp / (rate x size efficiency)",
        f"2 * {rows} * {inner} * {columns:g} / {_n(flops / seconds)} * 1e3",
        seconds * 1e3,
        "ms",
    )


def _layer_products(step: StepModel) -> list[tuple[float, float]]:
    """Return inner dimension and columns of each product of a dense layer, on one tensor-parallel rank."""
    model, tp = step.model, step.layout.tp
    pairs = [*model.attention_products(), *model.ffn_products(model.ffn)]
    return [part_of(pair, model.hidden, tp) for pair in pairs]


def _explain_backward(step: StepModel) -> Iterator[Term]:
    """Yield what the backward pass of one layer takes, and what it computes again."""
    layout, passes = step.layout, step.layers.layer(mixture=bool(step.model.moe_layers))
    if not step.model.moe_layers:
        seconds = [step.kernels.linear(layout.tokens, *pair)[1] for pair in _layer_products(step)]
        yield Term(
            "products, one layer backward",
            "gradients of the input and of the weight, for each product",
            " + ".join(_n(each * 1e3) for each in seconds),
            passes.backward.products * 1e3,
            "ms",
        )
    if layout.traits.attention != "scores" and layout.cp == 1:
        yield Term(
            "attention, one layer backward",
            "five products of the scores' size for two",
            f"{_n(passes.forward.attention * 1e3)} * 5 / 2",
            passes.backward.attention * 1e3,
            "ms",
            "Dao 2023",
        )
    yield Term(
        "memory-bound operations, one layer backward",
        "bytes / memory rate",
        f"{_n(passes.backward.memory * step.kernels.memory_rate)} / {_n(step.kernels.memory_rate)} * 1e3",
        passes.backward.memory * 1e3,
        "ms",
    )
    again = {cause: seconds for cause, seconds in vars(passes.recomputed).items() if seconds}
    if again:
        yield Term(
            "computed again, one layer",
            f"forward: {' + '.join(_CAUSES[cause] for cause in again)}",
            " + ".join(_n(seconds * 1e3) for seconds in again.values()),
            passes.recomputed.total * 1e3,
            "ms",
            "Chen et al. 2016",
        )


def _explain_fat_tree(step: StepModel) -> Iterator[Term]:
    """Yield the bandwidth of each group that leaves its NVLink domain, if the profile describes leaf switches."""
    links, layout = step.links, step.layout
    leaf, factor = links.leaf, links.oversubscription
    if leaf is None:
        return
    link, adapter = _n(links.link / 1e9), _n(links.adapter / 1e9)
    for what, group in step.rings.items():
        inside = group.inside(links.domain)
        if inside < group.size:
            below = links.ranks_below_leaf(group)
            leaves = below < group.size
            yield Term(
                f"bandwidth of a {_RINGS[what]} ring",
                "min(NVLink, ranks in a domain x adapter"
                + (", ranks below a leaf x adapter / oversubscription)" if leaves else "); it stays below a leaf"),
                f"min({link}, {inside} * {adapter}" + (f", {below} * {adapter} / {factor})" if leaves else ")"),
                links.bandwidth(group) / 1e9,
                "GB/s",
            )
    stride = layout.tp * layout.cp * layout.dp
    if layout.pp > 1 and layout.pp * stride > links.domain:
        leaves = layout.pp * stride > leaf
        yield Term(
            "bandwidth of a message between stages" + " on different nodes" * (stride < links.domain),
            "adapter" + (" x min(1, GPUs below a leaf / (senders x oversubscription))" if leaves else ""),
            adapter + (f" * min(1, {leaf} / ({min(stride, leaf)} * {factor}))" if leaves else ""),
            step.route.network / 1e9,
            "GB/s",
        )
    if links.ranks_below_leaf(Group(layout.ep, layout.expert_split)) < layout.ep:
        yield Term(
            "bandwidth of an all-to-all above a leaf",
            "adapter / oversubscription",
            f"{adapter} / {factor}",
            links.adapter / factor / 1e9,
            "GB/s",
        )


def _explain_messages(step: StepModel) -> Term:
    layout, sends, stage = step.layout, step.sends, step.stages[0].total.total
    hides = layout.traits.overlaps_stages and layout.virtual_stages > 1
    return Term(
        "messages between stages",
        "m x " + ("what exceeds the stage that they hide behind" if hides else "2 v (bytes / bandwidth + latency)"),
        f"{layout.num_micro} * " + (f"max(0, {_n(sends)} - {_n(stage)})" if hides else _n(sends)),
        step.step.pipeline,
        "s",
    )


def _explain_data(step: StepModel) -> Term:
    """Return the term of data parallelism: the exposed time, and what overlapped collectives add to the computation."""
    layout, m = step.layout, step.layout.num_micro
    exposed, slowed = step.data
    if step.gathers_layers:
        gather, *reductions = step.layer_transfers
        reduce = sum(reductions)
        layers = layout.heaviest_layers(step.model.layers)
        computation = (step.stages[0].total.total + step.copies_s) * m
        formula = "m x (gather + reduction of a layer) + what exceeds the computation + slowdown of the computation"
        transfers = f"{layers} * (2 * {_exact(gather)} + {_exact(reduce)}) * {m}"
        first = f"{m} * ({_exact(gather)} + {_exact(reduce)})"
        total = f"{first} + max(0, {transfers} - {_exact(computation)}) + {_exact(slowed)}"
    else:
        reduce, gather = step.step_transfers
        formula = "reduction + gather - what the last backward pass hides + slowdown of the computation"
        total = f"{_exact(reduce)} + {_exact(gather)} - {_exact(reduce + gather - exposed)} + {_exact(slowed)}"
    return Term("data parallelism", formula, total, step.step.data, "s", "Rajbhandari et al. 2020; Zhao et al. 2023")


def explain_memory(step: StepModel, memory: Memory) -> Iterator[Term]:
    """Yield the terms of the memory on the rank that holds most, in GiB."""
    layout = step.layout
    shared, experts = step.stage_parameter_parts
    yield Term(
        "parameters of the stage",
        "(layers of the stage + embedding) / tp + experts / (ep x expert tp)",
        f"{_n(shared)} + {_n(experts)}",
        step.stage_parameters,
        "",
    )
    if experts:
        yield _explain_expert_parameters(step, experts)
    if layout.recompute_layers is not None:
        yield _explain_kept_inputs(step)
    each = kept_activations(step.model, layout)
    flight, layers = activations_in_flight(layout), layout.heaviest_layers(step.model.layers)
    yield Term(
        "activations of the first stage",
        "bytes of a layer x layers x micro-batches in flight",
        f"{_n(each)} * {layers} * {_n(flight)} / 2**30",
        each * layers * flight / 2**30,
        "GiB",
        "Korthikanti et al. 2022",
    )
    yield from _explain_moment(step, memory)
    for name, words in _STATES.items():
        num_bytes, held = getattr(memory, name), getattr(memory, name) / state_bytes(layout)[name]
        on_gpu = " on the GPU" * (name == "optimizer" and layout.offload_optimizer > 0)
        formula = f"{words} x parameters of the rank{on_gpu}"
        yield Term(
            name.replace("optimizer", "optimizer state"),
            formula,
            f"{state_bytes(layout)[name]} * {_n(held)} / 2**30",
            num_bytes / 2**30,
            "GiB",
            "Rajbhandari et al. 2020",
        )
    varying = memory.activations + memory.temporary + memory.communication
    kept = round(memory.allocator - ALLOCATOR_SHARE * varying - CONTEXT_BYTES)
    yield Term(
        "allocator's share, CUDA and NCCL",
        "share of activations, temporary and gathered tensors + context" + " + freed blocks" * bool(kept),
        f"({ALLOCATOR_SHARE} * {_n(varying)} + {CONTEXT_BYTES:g}{f' + {_n(kept)}' * bool(kept)}) / 2**30",
        memory.allocator / 2**30,
        "GiB",
    )
    parts = " + ".join(_n(value / 2**30) for value in vars(memory).values())
    yield Term("memory", "sum of the kinds", parts, memory.total / 2**30, "GiB")


def _explain_kept_inputs(step: StepModel) -> Term:
    model, layout = step.model, step.layout
    held, again = layout.heaviest_layers(model.layers), layout.layers_computed_again(model.layers)
    inputs, whole = layout.kept_layer_inputs(model.layers), layer_activations(model, layout)
    return Term(
        "bytes of a mean layer",
        "(kept inputs x bytes of one + layers that are not computed again x their bytes) / layers",
        f"({inputs} * {_n(layer_input(model, layout))} + {held - again} * {_n(whole)}) / {held}",
        kept_activations(model, layout),
        "bytes",
        "Megatron-Core, `recompute_method`",
    )


def _explain_expert_parameters(step: StepModel, experts: float) -> Term:
    model, layout = step.model, step.layout
    layers = min(layout.heaviest_layers(model.layers), model.moe_layers)
    return Term(
        "experts of the rank",
        "layers x experts x parameters of an expert / (ep x expert tp)",
        f"{layers} * {model.experts} * {model.expert_parameters()} / ({layout.ep} * {layout.expert_split})",
        experts,
        "",
    )


def _explain_moment(step: StepModel, memory: Memory) -> Iterator[Term]:
    """Yield what exists only for a while: logits, a layer that is computed again, gathered parameters."""
    model, layout = step.model, step.layout
    if memory.temporary:
        what, formula, numbers = _temporary(step, memory)
        yield Term(what, formula, f"({numbers}) / 2**30", memory.temporary / 2**30, "GiB")
    if not memory.communication:
        return
    each, gathered = 2 + layout.traits.gradient_bytes, gathered_parameters(model, layout)
    if layout.traits.keeps_gathered and layout.pp > 1:
        formula, numbers = "(2 + bytes of a gradient) x parameters of the stage", f"{each} * {_n(gathered.stage)}"
    elif memory.communication == gathered_bytes(model, layout)[0]:
        formula, numbers = "2 x parameters outside of the layers, at the loss", f"2 * {_n(gathered.outside)}"
    else:
        formula = "2 x (outside of the layers + gradient of the output matrix) + (6 + bytes of a gradient) x a layer"
        numbers = f"2 * ({_n(gathered.outside)} + {_n(gathered.output)}) + {4 + each} * {_n(gathered.layer)}"
    yield Term(
        "gathered parameters, their gradients",
        formula,
        f"({numbers}) / 2**30",
        memory.communication / 2**30,
        "GiB",
        "Zhao et al. 2023",
    )


def _temporary(step: StepModel, memory: Memory) -> tuple[str, str, str]:
    """Return the name, the formula and the numbers of the temporary tensors at the moment that needs most."""
    model, layout = step.model, step.layout
    traits, tokens, columns = layout.traits, layout.tokens, model.vocab / layout.tp
    if memory.temporary == loss_bytes(model, layout):
        what = "logits and their loss"
        if traits.parallel_loss and layout.tp > 1:
            formula = f"tokens x ({PARALLEL_LOGIT_BYTES} bytes x vocabulary / tp + 2 bytes x hidden)"
            return what, formula, f"{tokens} * ({PARALLEL_LOGIT_BYTES} * {columns:g} + 2 * {model.hidden})"
        each = FUSED_LOGIT_BYTES if traits.fuses_loss else LOGIT_BYTES
        return what, f"{each} bytes x tokens x vocabulary / tp", f"{each} * {tokens} * {columns:g}"
    at_once = layout.layers_at_once(model.layers) if layout.recompute == "full" else 1
    if memory.temporary == at_once * layer_activations(model, layout):
        kept = " + ".join(
            f"{tensor.numbers:g} * {tensor.num_bytes:g} / {tensor.split:g}" for tensor in kept_tensors(model, layout)
        )
        what = "a layer that is computed again" if at_once == 1 else f"{at_once} layers that are computed again"
        formula = "tokens x what the layer keeps" + " x layers at once" * (at_once > 1)
        return what, formula, f"{tokens} * ({kept})" + f" * {at_once}" * (at_once > 1)
    updated = updated_parameters(layout, step.stage_parameter_parts)
    formula = "bytes of a parameter x parameters that the rank updates"
    return "tensors of the optimizer's step", formula, f"{traits.step_bytes} * {_n(updated)}"


def explain_utilization(step: StepModel) -> Iterator[Term]:
    """Yield the way from the peak down to the MFU, by cause."""
    shares = {cause: share for cause, share in losses(step).items() if abs(share) >= LEAST_SHARE}
    total = step.step.total
    for cause, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        yield Term(f"share of {cause}", "seconds / step", f"100 * {_n(share * total)} / {_n(total)}", 100 * share, "%")
    parts = " - ".join(_n(100 * share) for share in losses(step).values())
    yield Term("MFU in percent", "100 - shares of all causes", f"100 - {parts}", 100 * utilization(step), "%")


def explain_range(run: PlannedRun) -> Iterator[Term]:
    """Yield the width of the range around the step time, and its ends."""
    total, spread, distance = run.step.step.total, spread_of(run), nearest_runs(run)[0][0]
    typical = typical_error(run)
    yield Term(
        "width of the range",
        "larger of the least width for this kind of run, and the ninth of the ten errors of the nearest measured runs "
        f"x (1 + {WIDER} x doublings to the nearest)",
        f"max({_n(least_spread(run))}, {_n(typical)} * (1 + {WIDER} * {_n(distance)}))",
        spread,
        "",
    )
    yield Term("lower end", "step / (1 + width)", f"{_n(total)} / (1 + {_n(spread)})", total / (1 + spread), "s")
    yield Term("upper end", "step x (1 + width)", f"{_n(total)} * (1 + {_n(spread)})", total * (1 + spread), "s")


def explain_budget(step: StepModel, budget: Budget) -> Iterator[Term]:
    """Yield the terms of a training of a number of tokens."""
    layout, cluster = step.layout, step.cluster
    yield Term(
        "steps",
        "tokens / (global batch x sequence), rounded up",
        f"-(-{budget.tokens:.0f} // ({layout.global_batch} * {layout.seq_len}))",
        budget.steps,
        "",
    )
    checkpoints = budget.checkpoints
    if checkpoints:
        nodes = num_nodes(layout.num_gpus, cluster)
        yield Term(
            "checkpoint",
            f"{CHECKPOINT_BYTES} bytes x parameters / (nodes x storage)",
            f"{CHECKPOINT_BYTES} * {step.trained_parameters} / ({nodes} * {_n(cluster.storage or 0)})",
            checkpoints.write_s,
            "s",
        )
        if checkpoints.young_s is not None and checkpoints.failure_s is not None:
            yield Term(
                "interval of Young",
                "sqrt(2 x checkpoint x mean time between failures)",
                f"(2 * {_n(checkpoints.write_s)} * {_n(checkpoints.failure_s)}) ** 0.5",
                checkpoints.young_s,
                "s",
                "Young 1974",
            )
        if checkpoints.daly_s is not None and checkpoints.failure_s is not None:
            w, mtbf = _n(checkpoints.write_s), _n(checkpoints.failure_s)
            if checkpoints.write_s < 2 * checkpoints.failure_s:
                yield Term(
                    "interval of Daly",
                    "sqrt(2 w M) (1 + sqrt(w / 2 M) / 3 + (w / 2 M) / 9) - w",
                    f"(2 * {w} * {mtbf}) ** 0.5 * (1 + ({w} / (2 * {mtbf})) ** 0.5 / 3 + {w} / (2 * {mtbf}) / 9) - {w}",
                    checkpoints.daly_s,
                    "s",
                    "Daly 2006",
                )
            yield Term(
                "failures",
                "time / mean time between failures of all nodes",
                f"{_n(budget.wall_s)} / {mtbf}",
                budget.wall_s / checkpoints.failure_s,
                "",
            )
    hours = budget.wall_s / 3600
    yield Term("GPU-hours", "GPUs x hours", f"{layout.num_gpus} * {_n(hours)}", budget.gpu_hours, "h")
    drawn = "power of a node x nodes" if budget.whole_nodes else "power of a GPU x GPUs"
    yield Term(
        "energy",
        f"{drawn} x hours",
        f"{_n(budget.energy_wh / hours)} * {_n(hours)} / 1e6",
        budget.energy_wh / 1e6,
        "MWh",
    )
    if budget.money is not None and cluster.price is not None:
        yield Term(
            "money",
            "price x GPU-hours",
            f"{cluster.price.amount} * {_n(budget.gpu_hours)}",
            budget.money,
            cluster.price.currency,
        )
    yield Term(
        "days",
        "steps x step x slowdown by checkpoints and failures",
        f"{budget.steps} * {_n(step.step.total)} * {_n(checkpoints.slowdown if checkpoints else 1.0)} / 86400",
        budget.wall_s / 86400,
        "days",
    )


def _rate(step: StepModel) -> tuple[str, float]:
    gpu, constants = step.cluster.gpu, step.constants
    if narrow := gpu.sustained_narrow(step.layout.precision):
        best, share = narrow, constants.product_fp8
    else:
        best, share = gpu.sustained_bf16, constants.product
    return f"{_n(best / 1e12)} * {share}", step.kernels.product_rate / 1e12


def _n(number: float) -> str:
    """Return a number with six digits, as Python reads it."""
    return f"{number:.6g}"


def _exact(number: float) -> str:
    """Return a number with the digits that a difference needs."""
    return f"{number:.12g}"


_STATES = {
    "parameters": "bytes of a parameter",
    "gradients": "bytes of a gradient",
    "optimizer": "bytes of the optimizer's state of a parameter",
}
_RINGS = {
    "tensor": "tensor-parallel",
    "context": "context-parallel",
    "data": "data-parallel",
    "shards": "sharding",
    "replicas": "replicating",
}
_CAUSES = {
    "products": "matrix products",
    "attention": "attention",
    "memory": "memory-bound operations",
    "launch": "launches",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert parallelism",
}
