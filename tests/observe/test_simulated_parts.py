"""The parts of simulated GPUs inside this process, which keeps its own torch: rules of places, kernels, nvidia-smi."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from frog.observe.environment import HOOK, environment
from frog.observe.hook.frog_simulated_gpus import driver, gpu_packages, offer_nvidia_smi
from frog.observe.hook.frog_simulated_gpus import replace as replacing
from frog.observe.hook.frog_simulated_gpus import sync_batch_norm as kernels

placement: Any = import_module("frog.observe.hook.frog_simulated_gpus.placement")
HOST = placement.HOST


def on(where: int | None, *shape: int) -> torch.Tensor:
    """Return ones with a place."""
    placed: torch.Tensor = placement.place(torch.ones(shape), where)
    return placed


@pytest.fixture
def mode() -> Iterator[None]:
    """Intercept this thread's calls with rules for torch's own functions."""
    before = dict(placement.special), set(placement._MAY_MIX)
    placement._fill_may_mix()
    placement._fill_special()
    with placement.Placement():
        yield
    placement.special.clear()
    placement.special.update(before[0])
    placement._MAY_MIX.clear()
    placement._MAY_MIX.update(before[1])


# ---- places ----------------------------------------------------------------------------------------------------------


def test_views_share_a_place_and_copies_have_their_own() -> None:
    x = on(1, 4)
    assert [placement.place_of(y) for y in (x[:2], x.view(2, 2), x.clone())] == [1, 1, None]
    placement.place(x, None)
    assert placement.place_of(x[:1]) is None


def test_only_tensors_without_a_place_are_tagged_in_results() -> None:
    results = [on(None, 1), (on(0, 1), {"a": on(None, 1)})]
    placement.place_all(results, 1)
    tensors = (results[0], results[1][0], results[1][1]["a"])  # type: ignore[index]
    assert [placement.place_of(tensor) for tensor in tensors] == [1, 0, 1]


def test_first_place_prefers_a_gpu_in_nested_arguments() -> None:
    assert placement.first_place(([on(HOST, 1)], {"x": (on(1, 1), on(None, 1))})) == 1
    assert placement.first_place((on(HOST, 1),)) == HOST
    assert placement.first_place((on(None, 1), 3)) is None


def test_sparse_tensors_have_places() -> None:
    sparse = torch.eye(2).to_sparse()
    placement.place(sparse, 1)
    assert placement.place_of(sparse) == 1


@pytest.mark.usefixtures("mode")
def test_results_are_where_their_arguments_are() -> None:
    x = on(1, 2)
    found = [x * 2, x.sum(), torch.cat((x, x)), torch.stack([x])[0], x.chunk(2)[1], x + on(HOST)]
    assert [placement.place_of(y) for y in found] == [1] * len(found)
    assert placement.place_of(on(HOST, 2) + 1) == HOST


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("call", "devices"),
    [
        (lambda: on(0, 2) + on(HOST, 2), "cuda:0 and cpu"),
        (lambda: on(1, 2) * on(0, 2), "cuda:1 and cuda:0"),
        (lambda: torch.cat((on(HOST, 2), on(0, 2))), "cuda:0 and cpu"),
        (lambda: torch.nn.functional.linear(on(0, 1, 2), on(HOST, 2, 2)), "cuda:0 and cpu"),
        (lambda: torch.stack((on(0), on(HOST))), "cuda:0 and cpu"),
    ],
)
def test_tensors_on_different_devices_have_the_error_of_cuda(call: Any, devices: str) -> None:
    with pytest.raises(RuntimeError, match=f"same device, but found at least two devices, {devices}!"):
        call()


@pytest.mark.usefixtures("mode")
def test_copies_meet_also_while_frog_check_watches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a backward pass and the step, `frog check` replaces methods that write gradients."""
    original = torch.Tensor.copy_

    @functools.wraps(original)
    def watched(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        return original(tensor, *args)

    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    assert placement.place_of(on(0, 2).copy_(on(HOST, 2))) == 0


@pytest.mark.usefixtures("mode")
def test_indices_may_be_on_the_cpu_but_not_on_another_gpu() -> None:
    index = placement.place(torch.tensor([0, 1]), HOST)
    assert placement.place_of(on(1, 2)[index]) == 1
    with pytest.raises(RuntimeError, match=r"indices should be either on cpu or .* indexed tensor \(cuda:1\)"):
        on(1, 2)[placement.place(torch.tensor([0, 1]), 0)]


@pytest.mark.usefixtures("mode")
def test_gradient_of_another_device_is_refused() -> None:
    x = on(0, 2).requires_grad_()
    with pytest.raises(RuntimeError, match="gradient with device type 'cpu' to a tensor with device type 'cuda'"):
        x.grad = on(HOST, 2)
    x.grad = on(0, 2)
    assert placement.place_of(x.grad) == 0


@pytest.mark.usefixtures("mode")
def test_numpy_of_a_gpu_is_refused() -> None:
    with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
        on(1, 2).numpy()
    assert on(HOST, 2).numpy().tolist() == [1, 1]


@pytest.mark.usefixtures("mode")
def test_gradients_of_autograd_are_where_their_inputs_are() -> None:
    x = on(1, 2).requires_grad_()
    assert placement.place_of(torch.autograd.grad(x.sum(), x)[0]) == 1
    seen: list[Any] = []
    y = x * 2
    y.register_hook(lambda grad: seen.append(placement.place_of(grad)))
    y.sum().backward()
    assert seen == [1]


def test_fast_way_to_a_gradient_gives_it_the_place_of_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    fast_paths: Any = import_module("frog.observe.hook.frog_simulated_gpus.fast_paths")
    grad = fast_paths._grad_attribute(torch.Tensor.grad)
    x = on(1, 2).requires_grad_()
    with torch._C.DisableTorchFunction():
        x.grad = torch.ones(2)
    assert placement.place_of(grad.fget(x)) is None  # without the mode
    with placement.Placement() as entered:
        monkeypatch.setattr(placement._modes, "mode", entered)
        assert placement.place_of(grad.fget(x)) == 1
        grad.fset(x, None)
        assert grad.fget(x) is None


def test_mode_can_be_paused_and_left() -> None:
    with placement.Placement():
        with placement.paused():
            assert torch._C._len_torch_function_stack() == 0
        assert torch._C._len_torch_function_stack() == 1


def test_only_a_gpu_without_memory_has_the_error_of_cuda() -> None:
    error = RuntimeError(f"{placement.OUT_OF_MEMORY}: you tried to allocate {3 * 2**29} bytes.")
    assert placement.out_of_memory(error, HOST) is error
    assert placement.out_of_memory(error, None) is error
    text = str(placement.out_of_memory(error, 1))
    assert text.startswith("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1")


# ---- operators, profiler, generators ---------------------------------------------------------------------------------


def test_place_chooses_between_the_kernels_of_an_operator() -> None:
    operators: Any = import_module("frog.observe.hook.frog_simulated_gpus.operators")
    both = operators.chosen_kernel({"CPU": lambda x: "cpu", "CUDA": lambda x: "cuda"})
    assert [both(on(where, 1)) for where in (HOST, 0, None)] == ["cpu", "cuda", "cuda"]
    assert operators.chosen_kernel({"CUDA": lambda x: "cuda"})(on(HOST, 1)) == "cuda"


def test_operations_of_autocast_exist_in_torch() -> None:
    operators: Any = import_module("frog.observe.hook.frog_simulated_gpus.operators")
    for name in operators.FLOAT32:
        packet, _, overload = name.partition(".")
        assert getattr(getattr(torch.ops.aten, packet), overload or "default")


def test_half_precision_becomes_float32_in_nested_arguments() -> None:
    operators: Any = import_module("frog.observe.hook.frog_simulated_gpus.operators")
    half, whole = torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.int64)
    found = operators._in_float32((half, [half, 3], whole, half.double()))
    assert [found[0].dtype, found[1][0].dtype, found[1][1], found[2].dtype, found[3].dtype] == [
        torch.float32,
        torch.float32,
        3,
        torch.int64,
        torch.float64,
    ]


def test_profiler_records_the_cpu_for_cuda() -> None:
    profiled: Any = import_module("frog.observe.hook.frog_simulated_gpus.profiled_activities")
    both, cpu = [ProfilerActivity.CPU, ProfilerActivity.CUDA], [ProfilerActivity.CPU]
    assert [profiled.activities_of(asked) for asked in (both, both[1:], cpu, None)] == [cpu, cpu, cpu, None]


def test_dropout_without_a_probability_draws_nothing() -> None:
    generators: Any = import_module("frog.observe.hook.frog_simulated_gpus.generators")
    drawn: list[Any] = []
    handle = generators._dropping(1, "p", 0.5)
    original, generators._random = generators._random, lambda func, args, kwargs: drawn.append((args[1:], kwargs))
    try:
        for args, kwargs in (((0.0,), {}), ((), {"p": 0.0}), ((0.5,), {"training": False}), ((0.5,), {}), ((), {})):
            handle(lambda x, *args, **kwargs: x, (on(0, 1), *args), kwargs)
    finally:
        generators._random = original
    assert drawn == [((0.5,), {}), ((), {})]


# ---- SyncBatchNorm ---------------------------------------------------------------------------------------------------


def test_batch_norm_of_two_ranks_equals_that_of_the_whole_batch() -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 3, 4, dtype=torch.float64).requires_grad_()
    weight, bias = torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    parts = (x[:2].detach().float(), x[2:].detach().float())
    stats = [kernels.batch_norm_stats(part, 1e-5) for part in parts]
    counts = torch.tensor([[8.0], [12.0]])
    running = torch.zeros(3), torch.ones(3)
    mean, invstd = kernels.batch_norm_gather_stats_with_counts(
        parts[0], torch.stack([one[0] for one in stats]), torch.stack([one[1] for one in stats]), *running, 0.1, 1e-5,
        counts,
    )  # fmt: skip
    whole = torch.nn.BatchNorm1d(3).double()
    whole.weight.data, whole.bias.data = weight, bias
    expected = whole(x)
    out = [kernels.batch_norm_elemt(part, weight.float(), bias.float(), mean, invstd, 1e-5) for part in parts]
    torch.testing.assert_close(torch.cat(out).double(), expected.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(running[0].double(), whole.running_mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(running[1].double(), whole.running_var, atol=1e-5, rtol=1e-4)

    gradient = torch.randn(5, 3, 4, dtype=torch.float64)
    expected.backward(gradient)
    grads = (gradient[:2].float(), gradient[2:].float())
    sums = [
        kernels.batch_norm_backward_reduce(grad, part, mean, invstd, weight.float())
        for grad, part in zip(grads, parts, strict=True)
    ]
    total = [sums[0][i] + sums[1][i] for i in range(4)]
    found = [
        kernels.batch_norm_backward_elemt(grad, part, mean, invstd, weight.float(), *total[:2], counts)
        for grad, part in zip(grads, parts, strict=True)
    ]
    assert x.grad is not None
    torch.testing.assert_close(torch.cat(found).double(), x.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(total[2].double(), whole.weight.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(total[3].double(), whole.bias.grad, atol=1e-4, rtol=1e-4)


# ---- nvidia-smi, packages, replaced names ----------------------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_SIMULATE_GPUS", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(driver, "total_bytes", lambda count: 8 * 2**30 // count)
    monkeypatch.setattr(driver, "free_bytes", lambda count: 6 * 2**30 // count)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        (["-L"], 0, ["GPU 0: simulated GPU (CPU) (UUID: GPU-simulated-0)",
                     "GPU 1: simulated GPU (CPU) (UUID: GPU-simulated-1)"]),
        (["--query-gpu=index,memory.total,fan.speed", "--format=csv"], 0,
         ["index, memory.total [MiB], fan.speed", "0, 4096 MiB, [N/A]", "1, 4096 MiB, [N/A]"]),
        (["--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "1"], 0, ["1024"]),
        (["-i", "2", "-L"], 6, ["No devices were found: there are 2 simulated GPUs, numbered from 0"]),
        (["dmon"], 2, ["nvidia-smi is simulated, and does not know dmon: it knows -L, -i, --query-gpu and --format"]),
        (["-i", "1"], 0, ["NVIDIA-SMI 570.00 (simulated)   Driver Version: 570.00   CUDA Version: 12.8",
                          "|   1  simulated GPU (CPU)   |  1024MiB / 4096MiB  |   0%  |"]),
    ],
)  # fmt: skip
def test_nvidia_smi_lists_simulated_gpus(words: list[str], code: int, lines: list[str]) -> None:
    shown: list[str] = []
    assert driver.main(words, shown.append) == code
    assert shown == lines


def test_nvidia_smi_without_gpus_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_SIMULATE_GPUS", "")
    shown: list[str] = []
    assert (driver.main([], shown.append), shown) == (6, ["No devices were found"])


def test_nvidia_smi_is_first_on_the_path_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    offer_nvidia_smi()
    offer_nvidia_smi()

    first, *others = os.environ["PATH"].split(os.pathsep)
    assert (os.access(f"{first}/nvidia-smi", os.X_OK), others) == (True, ["/usr/bin"])


@pytest.mark.parametrize("package", gpu_packages._ADVICE)
def test_missing_package_of_kernels_has_one_sentence_of_advice(package: str) -> None:
    if package in sys.modules:
        pytest.skip(f"{package} is installed")
    finder = gpu_packages._Finder()
    sys.meta_path.append(finder)
    try:
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{package}' \\(simulated GPUs: .+; .+\\)$"):
            import_module(f"{package}.inner")
    finally:
        sys.meta_path.remove(finder)
    assert finder.find_spec(package, None) is None  # a question, not an import


def test_calls_without_effect_and_refused_calls_have_names() -> None:
    owner = SimpleNamespace(__name__="owner", there=len)
    replacing.replace(owner, "there", replacing.without_effect("owner.there", 7))
    replacing.replace(owner, "absent", None)
    assert (owner.there(1), owner.there.__name__, "owner.there" in replacing.replaced) == (7, "there", True)
    assert replacing.missing.pop() == "owner.absent"
    replacing._ignored.pop("owner.there")
    with pytest.raises(RuntimeError, match=r"owner\.x is not simulated: it needs a real GPU\n  try: y"):
        replacing.refused("owner.x", "y")()
    with pytest.raises(RuntimeError, match=r"owner\.Pool is not simulated"):
        replacing.refused_class("owner.Pool")()


# ---- the environment -------------------------------------------------------------------------------------------------


def test_observer_keeps_the_simulated_gpus_of_this_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("FROG_SIMULATE_GPUS", "2")
    monkeypatch.setenv("PYTHONPATH", f"{HOOK}:/x")
    found = environment(tmp_path)
    assert (found["FROG_HOOKS"], found["PYTHONPATH"]) == ("frog_observer,frog_simulated_gpus", f"{HOOK}:/x")
    monkeypatch.delenv("FROG_SIMULATE_GPUS")
    assert environment(tmp_path)["FROG_HOOKS"] == "frog_observer"
