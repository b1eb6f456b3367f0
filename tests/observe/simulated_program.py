"""A program for CUDA that prints, as JSON, what it sees of two simulated GPUs."""

import json
import pickle
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from frog_simulated_gpus.replace import missing, replaced
from torch import nn

seen: dict[str, object] = {"missing": missing, "replaced": replaced}


def error_of(call) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(2, device=torch.device("cpu"))


def devices() -> None:
    seen["named"] = [str(torch.device(1)), str(torch.device("cuda", 0)), isinstance(torch.device(0), torch.device)]
    seen["count"] = torch.cuda.device_count()
    seen["available"] = [torch.cuda.is_available(), torch.accelerator.is_available()]
    torch.cuda.set_device(1)
    x = torch.zeros(3)
    model = nn.Linear(3, 2).to(torch.device("cuda", 1))
    seen["devices"] = [str(x.device), str(x.cuda().device), str(model.weight.device), str(model(x.cuda()).device)]
    seen["is_cuda"] = [x.is_cuda, x.to("cuda:1").is_cuda, x.cuda().cpu().is_cuda, x.to(0).is_cuda]
    with torch.cuda.device(0):
        seen["inside"] = torch.cuda.current_device()
    seen["current"] = [torch.cuda.current_device(), x.cuda().get_device(), x.get_device()]
    seen["beyond"] = [
        error_of(call)
        for call in (
            lambda: torch.cuda.set_device(2),
            lambda: x.to("cuda:2"),
            lambda: x.cuda(2),
            lambda: torch.zeros(1, device="cuda:7"),
            lambda: model.to("cuda:2"),
            lambda: torch.load("none", map_location="cuda:2"),
        )
    ]
    with torch.device("meta"):
        seen["meta"] = str(nn.Linear(2, 2).weight.device)
    with torch.device("cuda"):
        seen["context"] = str(torch.zeros(2).device)


def copies() -> None:
    on_gpu = torch.ones(2, device="cuda")
    snapshot = on_gpu.cpu()
    on_gpu.add_(1)
    host = torch.ones(2)
    moved = host.cuda()
    moved.add_(1)
    seen["snapshot"], seen["host"], seen["same"] = snapshot.tolist(), host.tolist(), moved.to("cuda") is moved
    parameter = torch.ones(2, device="cuda", requires_grad=True)
    seen["leaf"] = parameter.cuda().is_leaf
    locations = ("cuda:1", torch.device("cuda"), {"cuda:0": "cuda:1"}, lambda storage, place: storage.cuda(0), None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pt"
        torch.save({"x": on_gpu}, path)
        seen["loaded"] = [torch.load(path, map_location=location)["x"].tolist() for location in locations]
    seen["pickled"] = str(pickle.loads(pickle.dumps(on_gpu)).device.type)


def numbers() -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    seen["generator"] = [
        isinstance(generator, torch.Generator),
        torch.rand(2, generator=generator, device="cuda").tolist()
        == torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist(),
    ]
    state = torch.cuda.get_rng_state()
    first = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state(state)
    seen["random"] = torch.equal(first, torch.rand(2, device="cuda"))
    x = torch.ones(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        seen["autocast"] = [str((x @ x).dtype), torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")]
    scaler = torch.amp.GradScaler("cuda")
    seen["scaler"] = [scaler.is_enabled(), scaler.scale(torch.ones((), device="cuda")).item()]


def graphs() -> None:
    """Capture a step of training, with a compiled function, and replay it with another input."""
    double = torch.compile(lambda x: 2 * x, backend="eager")
    x, model = torch.ones(2, 4, device="cuda"), nn.Linear(4, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = double(model(x)).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    step()
    graph, before = torch.cuda.CUDAGraph(), model.weight.detach().clone()
    with torch.cuda.graph(graph):
        loss, seen["capturing"] = step(), torch.cuda.is_current_stream_capturing()
    seen["captured"] = [torch.equal(model.weight, before), torch.cuda.is_current_stream_capturing()]
    x.fill_(3)
    expected = double(model(x)).square().sum()
    graph.replay()
    seen["replayed"] = [torch.equal(loss, expected), not torch.equal(model.weight, before)]

    def read() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()

    seen["synchronizing"] = error_of(read)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    seen["graphed"] = torch.equal(graphed(x), model(x))


def flex_attention() -> None:
    """Compute causal attention with torch's FlexAttention, whose kernel for the CPU has no gradients."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(1, heads, 8, 4, device="cuda", requires_grad=True) for heads in (4, 2, 2))
    mask = create_block_mask(lambda b, h, m, n: m >= n, None, None, 8, 8, device="cuda")
    found = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    gradients = [torch.autograd.grad(out.square().sum(), q)[0] for out in (found, expected)]
    seen["flex"] = [torch.allclose(found, expected, atol=1e-5), torch.allclose(*gradients, atol=1e-4)]


def rest() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        start.record()
        kept = torch.ones(3_000_000, device="cuda")
        end.record()
    torch.cuda.synchronize()
    seen["elapsed"] = start.elapsed_time(end) > 0
    seen["memory"] = [torch.cuda.memory_allocated() >= kept.nbytes, torch.cuda.max_memory_allocated() >= kept.nbytes]
    seen["scripted"] = torch.jit.script(on_cpu)(torch.ones(2, device="cuda")).tolist()
    from flash_attn import flash_attn_func
    from flash_attn.bert_padding import pad_input

    ones = torch.ones(1, 2, 1, 4, device="cuda")
    del sys.modules["flash_attn"]
    seen["flash"] = [flash_attn_func(ones, ones, ones).shape == ones.shape, find_spec("flash_attn") is None]
    seen["unknown"] = error_of(pad_input)
    seen["name"] = torch.cuda.get_device_name(0)
    seen["refused"] = [error_of(lambda: torch.cuda.MemPool())]
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.cuda.empty_cache()
    public = [name for name in torch.cuda.__all__ if callable(getattr(torch.cuda, name, None))]
    seen["untouched"] = [name for name in public if f"torch.cuda.{name}" not in replaced]


for part in (devices, copies, numbers, graphs, flex_attention, rest):
    part()
json.dump(seen, sys.stdout)
