"""Small cases of tensors and devices with what CUDA gives, and operations to compare with torch's fake tensors.

Each case is a few statements; the value of the last one, an expression, is compared as text. An error counts as its
type and the first line of its message. In `OPERATIONS`, `g` and `h` are on the GPUs 0 and 1, `c` is on the CPU, `i` and
`j` are indices on the CPU and on GPU 0, `z` has no dimensions and is on the CPU, `s` has none and is on GPU 0.
"""

MIXED = "RuntimeError: Expected all tensors to be on the same device, but "
TWO = "found at least two devices, cuda:0 and cpu!"

CASES = {
    "constructor": (
        "torch.ones(2).device, torch.ones(2, device='cuda').device",
        "(device(type='cpu'), device(type='cuda', index=0))",
    ),
    "results on the CPU": (
        "x = torch.ones(2)\nstr((x * 2).sum().device)",
        "cpu",
    ),
    "results on a GPU": (
        "x = torch.ones(2, device='cuda:1')\nstr((x * 2).sum().device)",
        "cuda:1",
    ),
    "chain on the CPU": (
        "g = torch.ones(3, device='cuda')\nstr(g.cpu().float().mul(2).device)",
        "cpu",
    ),
    "new module": (
        "str(next(nn.Linear(2, 2).parameters()).device)",
        "cpu",
    ),
    "module moved back": (
        "m = nn.Linear(2, 2)\nm.cuda(); m.cpu()\nstr(m.weight.device)",
        "cpu",
    ),
    "module on a GPU": (
        "m = nn.Linear(2, 2).to('cuda:1')\nstr([str(p.device) for p in m.parameters()])",
        "['cuda:1', 'cuda:1']",
    ),
    "module made on a GPU": (
        "str(nn.Linear(2, 2, device='cuda:1').weight.device)",
        "cuda:1",
    ),
    "buffers move": (
        "str(nn.BatchNorm1d(2).cuda().running_mean.device)",
        "cuda:0",
    ),
    "deep copy": (
        "import copy\nm = copy.deepcopy(nn.Linear(2, 2).to('cuda:1'))\nstr(m.weight.device)",
        "cuda:1",
    ),
    "clone and detach": (
        "x = torch.ones(2, device='cuda:1')\n"
        "str([str(y.device) for y in (x.clone(), x.detach(), x[:1], x.view(2, 1))])",
        "['cuda:1', 'cuda:1', 'cuda:1', 'cuda:1']",
    ),
    "empty_like": (
        "x = torch.ones(2, device='cuda:1')\n"
        "str([str(y.device) for y in (torch.empty_like(x), x.new_zeros(2), torch.zeros_like(torch"
        ".ones(2)))])",
        "['cuda:1', 'cuda:1', 'cpu']",
    ),
    "empty_like elsewhere": (
        "str(torch.empty_like(torch.ones(2), device='cuda:1').device)",
        "cuda:1",
    ),
    "current device": (
        "torch.cuda.set_device(1)\nx = torch.ones(2, device='cuda')\ntorch.cuda.set_device(0)\nstr(x.device)",
        "cuda:1",
    ),
    "inside torch.cuda.device": (
        "with torch.cuda.device(1): x = torch.ones(2).cuda()\nstr(x.device)",
        "cuda:1",
    ),
    "default device": (
        "torch.set_default_device('cuda')\n"
        "x = torch.ones(2)\n"
        "d = torch.get_default_device()\n"
        "torch.set_default_device(None)\n"
        "str((str(x.device), str(d), str(torch.ones(2).device)))",
        "('cuda:0', 'cuda:0', 'cpu')",
    ),
    "device context": (
        "with torch.device('cuda:1'): m = nn.Linear(2, 2)\nstr(m.weight.device)",
        "cuda:1",
    ),
    "gradient": (
        "m = nn.Linear(2, 2).to('cuda:1')\n"
        "m(torch.ones(1, 2, device='cuda:1')).sum().backward()\n"
        "str(m.weight.grad.device)",
        "cuda:1",
    ),
    "norm of gradients": (
        "m, c = nn.Linear(2, 2).to('cuda:1'), nn.Linear(2, 2)\n"
        "m(torch.ones(1, 2, device='cuda:1')).sum().backward(); c(torch.ones(1, 2)).sum().backward()\n"
        "norms = [nn.utils.clip_grad_norm_(x.parameters(), 1.0) for x in (m, c)]\n"
        "str([str(x.device) for x in (*norms, m.weight.grad, c.weight.grad)])",
        "['cuda:1', 'cpu', 'cuda:1', 'cpu']",
    ),
    "gradient after a second step": (
        "m = nn.Linear(2, 2).to('cuda:1')\n"
        "o = torch.optim.AdamW(m.parameters())\n"
        "for step in range(2):\n"
        "    o.zero_grad(); m(torch.ones(1, 2, device='cuda:1')).sum().backward(); o.step()\n"
        "m.weight.grad + torch.ones(2, 2)",
        MIXED + "found at least two devices, cuda:1 and cpu!",
    ),
    "gradient of another device in the next step": (
        "m = nn.Linear(2, 2)\nm(torch.ones(1, 2)).sum().backward()\nm.weight.grad.cuda() + m.weight.grad",
        MIXED + TWO,
    ),
    "closure of an optimizer": (
        "m = nn.Linear(2, 2).cuda()\n"
        "o = torch.optim.Adam(m.parameters())\n"
        "m(torch.ones(1, 2).cuda()).sum().backward(); o.step()\n"
        "o.step(lambda: m(torch.ones(1, 2)))",
        MIXED + TWO,
    ),
    "gradient seen by a program's own mode": (
        "from torch.overrides import TorchFunctionMode\n"
        "seen = []\n"
        "class Watch(TorchFunctionMode):\n"
        "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
        "        seen.append(getattr(func, '__name__', '')); return func(*args, **(kwargs or {}))\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "with Watch(): x.grad; x.sum().item()\n"
        "str(seen)",
        "['__get__', 'sum', 'item']",
    ),
    "dropout draws from the GPU": (
        "x = torch.ones(1000, device='cuda')\n"
        "torch.cuda.manual_seed(1); a = F.dropout(x, 0.5)\n"
        "torch.cuda.manual_seed(1); b = F.dropout(x, training=True)\n"
        "c = F.dropout(x, 0.5, False)\n"
        "str((torch.equal(a, b), bool((a == 0).any()), bool((c == 0).any()), str(c.device)))",
        "(True, True, False, 'cuda:0')",
    ),
    "attention with dropout": (
        "q = torch.ones(1, 1, 50, 4, device='cuda')\n"
        "host, gpu = torch.get_rng_state(), torch.cuda.get_rng_state()\n"
        "F.scaled_dot_product_attention(q, q, q, None, 0.5)\n"
        "str((torch.equal(host, torch.get_rng_state()), torch.equal(gpu, torch.cuda.get_rng_state())))",
        "(True, False)",
    ),
    "no memory left on a GPU": (
        "torch.empty(10**15, device='cuda:1', dtype=torch.uint8)",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 931322.57 GiB. GPU 1 has no memory left.",
    ),
    "no memory left for a result": (
        "x = torch.ones(10**6, 1, device='cuda')\nx * torch.ones(1, 10**9, device='cuda')",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 3725290.30 GiB. GPU 0 has no memory left.",
    ),
    "no memory left on the CPU": (
        "torch.empty(10**15, dtype=torch.uint8)",
        "RuntimeError: [enforce fail at …",
    ),
    "CUDA's runtime": (
        "r = torch.cuda.cudart()\n"
        "torch.cuda.check_error(r.cudaProfilerStart()); torch.cuda.check_error(r.cudaProfilerStop())\n"
        "str((r.cudaError.success, r.cudaMemGetInfo(0)[1] == torch.cuda.mem_get_info()[1]))",
        "(0, True)",
    ),
    "CUDA's runtime, another function": (
        "torch.cuda.cudart().cudaStreamCreate(0)",
        "RuntimeError: torch.cuda.cudart().cudaStreamCreate is not simulated: it needs a real GPU",
    ),
    "memory snapshot": (
        "import pickle, tempfile\n"
        "torch.cuda.memory._record_memory_history(max_entries=10)\n"
        "with tempfile.NamedTemporaryFile() as file:\n"
        "    torch.cuda.memory._dump_snapshot(file.name); dumped = pickle.load(file)\n"
        "str((dumped == torch.cuda.memory._snapshot(), dumped['segments'], len(dumped['device_traces'])))",
        "(True, [], 2)",
    ),
    "memory statistics": (
        "s, n = torch.cuda.memory_stats(), torch.cuda.memory_stats_as_nested_dict()\n"
        "str((s['oversize_segments.peak'], s['max_split_size'], n['segment']['all']['current'], "
        "n['allocated_bytes']['all']['peak'] > 0))",
        "(0, -1, 0, True)",
    ),
    "operator registered for CUDA": (
        "library = torch.library.Library('simulated_case', 'DEF')\n"
        "library.define('double(Tensor x) -> Tensor')\n"
        "library.impl('double', lambda x: x * 2, 'CUDA')\n"
        "y = torch.ops.simulated_case.double(torch.ones(1, device='cuda:1'))\n"
        "str((y.item(), str(y.device)))",
        "(2.0, 'cuda:1')",
    ),
    "operator registered for CUDA and the CPU": (
        "torch.library.define('simulated_case::both', '(Tensor x) -> Tensor')\n"
        "torch.library.impl('simulated_case::both', 'cuda')(lambda x: x * 2)\n"
        "torch.library.impl('simulated_case::both', 'cpu')(lambda x: x * 3)\n"
        "str([torch.ops.simulated_case.both(torch.ones(1, device=d)).item() for d in ('cuda', 'cpu')])",
        "[2.0, 3.0]",
    ),
    "custom operator with kernels of its own": (
        "def one(x: torch.Tensor) -> torch.Tensor: return x * 2\n"
        "def two(x: torch.Tensor) -> torch.Tensor: return x * 3\n"
        "g = torch.library.custom_op('simulated_case::g', mutates_args=(), device_types='cuda')(one)\n"
        "h = torch.library.custom_op('simulated_case::h', mutates_args=())(one)\n"
        "h.register_kernel('cuda')(two)\n"
        "x = torch.ones(1, device='cuda')\n"
        "str((g(x).item(), h(x).item(), h(x.cpu()).item()))",
        "(2.0, 3.0, 2.0)",
    ),
    "autocast computes in float32": (
        "x = torch.ones(4, 4, device='cuda')\n"
        "with torch.autocast('cuda'):\n"
        "    y = x @ x\n"
        "    f = (y.softmax(-1), F.layer_norm(y, (4,)), y.sum(), y.exp(), y.pow(2), y.norm())\n"
        "    f += (F.cosine_similarity(y, y),)\n"
        "    h = (y, F.gelu(y), F.linear(y, x), F.batch_norm(y, None, None, training=True))\n"
        "str(({z.dtype for z in f}, {z.dtype for z in h}))",
        "({torch.float32}, {torch.float16})",
    ),
    "autocast of the CPU": (
        "x = torch.ones(4, 4)\nwith torch.autocast('cpu', dtype=torch.bfloat16): y = (x @ x).softmax(-1)\nstr(y.dtype)",
        "torch.bfloat16",
    ),
    "autocast refuses binary cross entropy": (
        "x = torch.ones(2, device='cuda')\nwith torch.autocast('cuda'): nn.BCELoss()(x, x)",
        "RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
    ),
    "profiler of CUDA alone": (
        "from torch.profiler import ProfilerActivity, profile\n"
        "x = torch.ones(2, device='cuda')\n"
        "with profile(activities=[ProfilerActivity.CUDA]) as p: x * 2\n"
        "found = torch.profiler.supported_activities()\n"
        "str(('aten::mul' in [e.key for e in p.key_averages()], ProfilerActivity.CUDA in found))",
        "(True, True)",
    ),
    "scatter": (
        "x = torch.arange(6.0, requires_grad=True)\n"
        "a, b = nn.parallel.scatter(x.cuda(), [0, 1])\n"
        "(a.sum() + 2 * b.sum().cuda(0)).backward()\n"
        "str((str(a.device), str(b.device), b.tolist(), x.grad.tolist()))",
        "('cuda:0', 'cuda:1', [3.0, 4.0, 5.0], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0])",
    ),
    "gather": (
        "parts = [torch.ones(1, 2, device='cuda:0'), torch.zeros(2, 2, device='cuda:1')]\n"
        "y, host = (nn.parallel.gather(parts, where) for where in (1, 'cpu'))\n"
        "str((str(y.device), y.tolist(), str(host.device)))",
        "('cuda:1', [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], 'cpu')",
    ),
    "gather into a tensor": (
        "out = torch.zeros(3, device='cuda:1')\n"
        "nn.parallel.comm.gather([torch.ones(1).cuda(), torch.ones(2).cuda() * 2], out=out)\n"
        "str((str(out.device), out.tolist()))",
        "('cuda:1', [1.0, 2.0, 2.0])",
    ),
    "scatter into tensors, by sizes": (
        "x = torch.arange(3.0).cuda()\n"
        "out = [torch.zeros(1, device='cuda:0'), torch.zeros(2, device='cuda:1')]\n"
        "nn.parallel.comm.scatter(x, out=out)\n"
        "parts = nn.parallel.comm.scatter(x, [1, 0], chunk_sizes=[2, 1])\n"
        "str(([o.tolist() for o in out], [(str(p.device), p.tolist()) for p in parts]))",
        "([[0.0], [1.0, 2.0]], [('cuda:1', [0.0, 1.0]), ('cuda:0', [2.0])])",
    ),
    "broadcast": (
        "x = torch.ones(2, device='cuda:0')\n"
        "a, b = nn.parallel.comm.broadcast(x, [0, 1])\n"
        "out = [torch.zeros(2, device='cuda:1')]\n"
        "nn.parallel.comm.broadcast(x, out=out)\n"
        "x.add_(1)\n"
        "str((a.tolist(), b.tolist(), str(b.device), out[0].tolist()))",
        "([2.0, 2.0], [1.0, 1.0], 'cuda:1', [1.0, 1.0])",
    ),
    "gradients of replicas": (
        "m = nn.Linear(2, 1, bias=False).cuda()\n"
        "first, second = nn.parallel.replicate(m, [0, 1])\n"
        "loss = first(torch.ones(1, 2).cuda(0)).sum() + 3 * second(torch.ones(1, 2).cuda(1)).sum().cuda(0)\n"
        "loss.backward()\n"
        "str((str(second.weight.device), str(m.weight.grad.device), m.weight.grad.tolist()))",
        "('cuda:1', 'cuda:0', [[4.0, 4.0]])",
    ),
    "data parallel has a replica for each GPU": (
        "class Seen(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.linear = nn.Linear(2, 2)\n"
        "    def forward(self, x): seen.append((str(x.device), str(self.linear.weight.device), len(x))); return x\n"
        "seen = []\n"
        "y = nn.DataParallel(Seen().cuda())(torch.ones(5, 2).cuda())\n"
        "str((sorted(seen), str(y.device), tuple(y.shape)))",
        "([('cuda:0', 'cuda:0', 3), ('cuda:1', 'cuda:1', 2)], 'cuda:0', (5, 2))",
    ),
    "data parallel refuses a module on the CPU": (
        "nn.DataParallel(nn.Linear(2, 2))(torch.ones(4, 2))",
        "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) "
        "but found one of them on device: cpu",
    ),
    "object received on a GPU": (
        "import torch.distributed.distributed_c10d as c10d\n"
        "tensor, size = c10d._object_to_tensor({'a': 1}, torch.device('cuda:1'), None)\n"
        "str((str(tensor.device), c10d._tensor_to_object(tensor, size, None)))",
        "('cuda:1', {'a': 1})",
    ),
    "data parallel moves inputs": (
        "m = nn.Linear(2, 2).cuda()\n"
        "y = nn.DataParallel(m)(torch.ones(4, 2))\n"
        "z = nn.parallel.data_parallel(m, torch.ones(4, 2), [0, 1], 1)\n"
        "str((str(y.device), str(z.device), torch.equal(y.cpu(), z.cpu())))",
        "('cuda:0', 'cuda:1', True)",
    ),
    "nvidia-smi": (
        "import subprocess\n"
        "words = ['nvidia-smi', '--query-gpu=index,name', '--format=csv,noheader']\n"
        "subprocess.run(words, capture_output=True, text=True).stdout",
        "0, simulated GPU (CPU)\n1, simulated GPU (CPU)\n",
    ),
    "thread that outlives its work": (
        "import subprocess, sys\n"
        "code = 'import torch, threading, time; threading.Thread(target=lambda: torch.ones(1).cuda() + 1).start()'\n"
        "str([subprocess.run([sys.executable, '-c', code]).returncode for i in range(2)])",
        "[0, 0]",
    ),
    "gradient on the CPU": (
        "m = nn.Linear(2, 2)\nm(torch.ones(1, 2)).sum().backward()\nstr(m.weight.grad.device)",
        "cpu",
    ),
    "autograd.grad": (
        "x = torch.ones(2, device='cuda:1', requires_grad=True)\nstr(torch.autograd.grad(x.sum(), x)[0].device)",
        "cuda:1",
    ),
    "gradient in a hook": (
        "x = torch.ones(2, device='cuda:1', requires_grad=True)\n"
        "seen = []\n"
        "y = x * 2\n"
        "y.register_hook(lambda grad: seen.append(str(grad.device)))\n"
        "y.sum().backward()\n"
        "str(seen)",
        "['cuda:1']",
    ),
    "gradient in a hook on the CPU": (
        "x = torch.ones(2, requires_grad=True)\n"
        "seen = []\n"
        "y = x * 2\n"
        "y.register_hook(lambda grad: seen.append(str(grad.device)))\n"
        "y.sum().backward()\n"
        "str(seen)",
        "['cpu']",
    ),
    "own function": (
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): ctx.save_for_backward(x); return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad): seen.append((str(grad.device), str(ctx.saved_tensors[0].dev"
        "ice))); return grad * 2\n"
        "seen = []\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "Double.apply(x).sum().backward()\n"
        "str(seen)",
        "[('cpu', 'cpu')]",
    ),
    "optimizer's state": (
        "m = nn.Linear(2, 2).cuda()\n"
        "o = torch.optim.Adam(m.parameters())\n"
        "m(torch.ones(1, 2).cuda()).sum().backward(); o.step()\n"
        "s = o.state[m.weight]\n"
        "str((str(s['exp_avg'].device), str(s['step'].device)))",
        "('cuda:0', 'cpu')",
    ),
    "optimizer's state on the CPU": (
        "m = nn.Linear(2, 2)\n"
        "o = torch.optim.Adam(m.parameters())\n"
        "m(torch.ones(1, 2)).sum().backward(); o.step()\n"
        "str(o.state[m.weight]['exp_avg'].device)",
        "cpu",
    ),
    "optimizer's state loaded": (
        "m = nn.Linear(2, 2)\n"
        "o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)\n"
        "m(torch.ones(1, 2)).sum().backward(); o.step()\n"
        "state = o.state_dict()\n"
        "m = nn.Linear(2, 2).cuda()\n"
        "o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)\n"
        "o.load_state_dict(state)\n"
        "str(o.state[m.weight]['momentum_buffer'].device)",
        "cuda:0",
    ),
    "load_state_dict keeps the device": (
        "m = nn.Linear(2, 2).cuda()\nm.load_state_dict(nn.Linear(2, 2).state_dict())\nstr(m.weight.device)",
        "cuda:0",
    ),
    "load_state_dict assign": (
        "m = nn.Linear(2, 2).cuda()\n"
        "m.load_state_dict(nn.Linear(2, 2).state_dict(), assign=True)\n"
        "str(m.weight.device)",
        "cpu",
    ),
    "data loader": (
        "loader = torch.utils.data.DataLoader([torch.ones(2)] * 2, batch_size=2)\nstr(next(iter(loader)).device)",
        "cpu",
    ),
    "data loader with workers": (
        "loader = torch.utils.data.DataLoader([torch.ones(2)] * 2, batch_size=2, num_workers=1)\n"
        "str(next(iter(loader)).device)",
        "cpu",
    ),
    "data loader, pinned": (
        "loader = torch.utils.data.DataLoader([torch.ones(2)] * 2, batch_size=2, pin_memory=True)"
        "\n"
        "x = next(iter(loader))\n"
        "str((str(x.device), x.is_pinned()))",
        "('cpu', True)",
    ),
    "from_numpy": (
        "import numpy\nstr(torch.from_numpy(numpy.ones(2)).device)",
        "cpu",
    ),
    "as_tensor": (
        "str((str(torch.as_tensor([1]).device), str(torch.as_tensor([1], device='cuda').device), "
        "str(torch.as_tensor(torch.ones(1, device='cuda:1')).device)))",
        "('cpu', 'cuda:0', 'cuda:1')",
    ),
    "module to a GPU by number": (
        "str(nn.Linear(2, 2).to(1).weight.device)",
        "cuda:1",
    ),
    "to like another": (
        "str(torch.ones(2).to(torch.ones(1, device='cuda:1')).device)",
        "cuda:1",
    ),
    "type_as": (
        "str(torch.ones(2).type_as(torch.ones(1, device='cuda:1')).device)",
        "cuda:1",
    ),
    "type": (
        "str((torch.ones(1).type(), torch.ones(1, device='cuda').type(), torch.ones(1, device='cuda').half().type()))",
        "('torch.FloatTensor', 'torch.cuda.FloatTensor', 'torch.cuda.HalfTensor')",
    ),
    "get_device": (
        "str((torch.ones(1).get_device(), torch.ones(1, device='cuda:1').get_device()))",
        "(-1, 1)",
    ),
    "is_cuda": (
        "str((torch.ones(1).is_cuda, torch.ones(1, device='cuda:1').is_cuda, torch.ones(1).is_cpu"
        ", torch.ones(1, device='cuda').is_cpu))",
        "(False, True, True, False)",
    ),
    "text of a tensor": (
        "str((torch.ones(1), torch.ones(1, device='cuda:1')))",
        "(tensor([1.]), tensor([1.], device='cuda:1'))",
    ),
    "parameter's data": (
        "p = nn.Parameter(torch.ones(2))\np.data = p.data.to('cuda:1')\nstr(p.device)",
        "cuda:1",
    ),
    "pipe of two GPUs": (
        "a, b = nn.Linear(2, 2).to('cuda:0'), nn.Linear(2, 2).to('cuda:1')\n"
        "y = b(a(torch.ones(1, 2, device='cuda:0')).to('cuda:1'))\n"
        "y.sum().backward()\n"
        "str((str(y.device), str(a.weight.grad.device), str(b.weight.grad.device)))",
        "('cuda:1', 'cuda:0', 'cuda:1')",
    ),
    "thread": (
        "import threading\n"
        "seen = []\n"
        "def work(): seen.append(str((torch.ones(1) + 1).device)); seen.append(str((torch.ones(1,"
        " device='cuda:1') + 1).device))\n"
        "t = threading.Thread(target=work); t.start(); t.join()\n"
        "str(seen)",
        "['cpu', 'cuda:1']",
    ),
    "compiled function": (
        "f = torch.compile(lambda x: x * 2, backend='eager')\n"
        "str((str(f(torch.ones(2, device='cuda:1')).device), str(f(torch.ones(2)).device)))",
        "('cuda:1', 'cpu')",
    ),
    "checkpoint recomputes": (
        "from torch.utils.checkpoint import checkpoint\n"
        "x = torch.ones(200, device='cuda', requires_grad=True)\n"
        "y = checkpoint(lambda x: nn.functional.dropout(x, 0.5) * x, x, use_reentrant=False)\n"
        "kept = y.detach() != 0\n"
        "y.sum().backward()\n"
        "bool(((x.grad != 0) == kept).all())",
        "True",
    ),
    "storage's device": (
        "str((str(torch.ones(1).untyped_storage().device), str(torch.ones(1, device='cuda:1').unt"
        "yped_storage().device)))",
        "('cpu', 'cuda:1')",
    ),
    "tensor made from a GPU's number": (
        "str(torch.tensor([1.0], device=1).device)",
        "cuda:1",
    ),
    "functional transform": (
        "str(torch.func.grad(lambda x: (x * x).sum())(torch.ones(2, device='cuda:1')).device)",
        "cuda:1",
    ),
    "loop of a recurrent module": (
        "y, (h, c) = nn.LSTM(2, 3).to('cuda:1')(torch.ones(4, 1, 2, device='cuda:1'))\n"
        "str((str(y.device), str(h.device)))",
        "('cuda:1', 'cuda:1')",
    ),
    "pickled": (
        "import pickle\nstr(pickle.loads(pickle.dumps(torch.ones(2, device='cuda:1'))).device)",
        "cuda:1",
    ),
    "saved and loaded": (
        "import io\n"
        "f = io.BytesIO()\n"
        "torch.save({'g': torch.ones(2, device='cuda:1'), 'c': torch.ones(2)}, f)\n"
        "def where(**options): f.seek(0); x = torch.load(f, **options); return str(x['g'].device)"
        ", str(x['c'].device)\n"
        "str([where(), where(map_location='cpu'), where(map_location='cuda:0'), where(map_locatio"
        "n={'cuda:1': 'cuda:0'})])",
        "[('cuda:1', 'cpu'), ('cpu', 'cpu'), ('cuda:0', 'cuda:0'), ('cuda:0', 'cpu')]",
    ),
    "loaded with a function": (
        "import io\n"
        "f = io.BytesIO()\n"
        "torch.save([torch.ones(2, device='cuda:1'), torch.ones(2)], f); f.seek(0)\n"
        "seen = []\n"
        "x = torch.load(f, map_location=lambda storage, place: seen.append(place) or storage)\n"
        "str((sorted(seen), str(x[0].device)))",
        "(['cpu', 'cuda:1'], 'cpu')",
    ),
    "parameter list": (
        "m = nn.ParameterList([torch.ones(2)]).cuda()\nstr(m[0].device)",
        "cuda:0",
    ),
    "in place of another device": (
        "g = torch.zeros(2, device='cuda:1')\ng.copy_(torch.ones(2))\nstr((str(g.device), g.tolist()))",
        "('cuda:1', [1.0, 1.0])",
    ),
    "sent to a process": (
        "import torch.multiprocessing as mp\n"
        "q = mp.get_context('fork').SimpleQueue()\n"
        "q.put(torch.ones(2)); q.put(torch.ones(2, device='cuda:1'))\n"
        "str((str(q.get().device), str(q.get().device)))",
        "('cpu', 'cuda:1')",
    ),
    "pinned buffer": (
        "s = torch.empty(4, 8, pin_memory=True)\n"
        "b = []\n"
        "for step in range(4):\n"
        "    s.fill_(step)\n"
        "    b.append(s[:2].cuda(non_blocking=True))\n"
        "str([int(x[0, 0]) for x in b])",
        "[0, 1, 2, 3]",
    ),
    "slice moved": (
        "x = torch.zeros(4)\ny = x[:2].cuda()\nx += 1\ny.tolist()",
        "[0.0, 0.0]",
    ),
    "view moved": (
        "x = torch.zeros(4)\ny = x.view(2, 2).to('cuda')\nx += 1\ny.tolist()",
        "[[0.0, 0.0], [0.0, 0.0]]",
    ),
    "array moved": (
        "import numpy\na = numpy.zeros(2)\ny = torch.from_numpy(a).cuda()\na += 1\ny.tolist()",
        "[0.0, 0.0]",
    ),
    "array moved by as_tensor": (
        "import numpy\na = numpy.zeros(2)\ny = torch.as_tensor(a, device='cuda')\na += 1\ny.tolist()",
        "[0.0, 0.0]",
    ),
    "tensor moved by as_tensor": (
        "x = torch.zeros(2)\ny = torch.as_tensor(x, device='cuda')\nx += 1\ny.tolist()",
        "[0.0, 0.0]",
    ),
    "GPU to GPU": (
        "w = torch.zeros(1, device='cuda:0')\ne = w.to('cuda:1')\ne += 1\nstr((w.item(), e.item()))",
        "(0.0, 1.0)",
    ),
    "GPU to the same GPU": (
        "w = torch.zeros(1, device='cuda:0')\nw.to('cuda:0') is w and w.cuda() is w and w.to('cuda') is w",
        "True",
    ),
    "to the CPU": (
        "w = torch.zeros(1, device='cuda:0')\nc = w.cpu()\nw += 1\nstr((c.item(), c.cpu() is c))",
        "(0.0, True)",
    ),
    "cuda moves to the current GPU": (
        "w = torch.zeros(1, device='cuda:1')\nstr(w.cuda().device)",
        "cuda:0",
    ),
    "EMA of the weights": (
        "w = torch.zeros(1, device='cuda:0')\n"
        "ema = w.to('cuda:1'); w += 1; ema.mul_(0.5).add_(w.to('cuda:1'), alpha=0.5)\n"
        "ema.item()",
        "0.5",
    ),
    "parameter moved as data": (
        "p = nn.Parameter(torch.zeros(2))\nq = p.detach().cuda()\nwith torch.no_grad(): p += 1\nq.tolist()",
        "[0.0, 0.0]",
    ),
    "data loader's batch moved": (
        "x = torch.zeros(2, 2)\n"
        "b = next(iter(torch.utils.data.DataLoader(x, batch_size=None)))\n"
        "y = b.cuda()\n"
        "x += 1\n"
        "y.tolist()",
        "[0.0, 0.0]",
    ),
    "pin_memory is a copy": (
        "x = torch.zeros(2)\n"
        "p = x.pin_memory()\n"
        "x += 1\n"
        "str((p.tolist(), p.is_pinned(), x.is_pinned(), p.pin_memory() is p))",
        "([0.0, 0.0], True, False, True)",
    ),
    "numpy of a host copy": (
        "g = torch.zeros(2, device='cuda')\na = g.cpu().numpy()\ng += 1\na.tolist()",
        "[0.0, 0.0]",
    ),
    "contiguous copy with a dtype": (
        "x = torch.zeros(2)\ny = x.to('cuda', torch.float64)\nstr((y.dtype, str(y.device)))",
        "(torch.float64, 'cuda:0')",
    ),
    "module copies its weights": (
        "w = torch.zeros(2, 2)\n"
        "m = nn.Linear(2, 2)\n"
        "m.weight = nn.Parameter(w)\n"
        "m.cuda()\n"
        "w += 1\n"
        "m.weight.sum().item()",
        "0.0",
    ),
    "storage moved": (
        "x = torch.zeros(2)\n"
        "s = x.untyped_storage().cuda()\n"
        "x += 1\n"
        "str((str(s.device), torch.tensor([], device='cuda').set_(s).tolist()))",
        "('cuda:0', [0.0, 0.0])",
    ),
    "model not moved": (
        "m = nn.Linear(2, 2)\nm(torch.ones(1, 2, device='cuda'))",
        MIXED + "…",
    ),
    "batch not moved": (
        "m = nn.Linear(2, 2).cuda()\nm(torch.ones(1, 2))",
        MIXED + "…",
    ),
    "target not moved": (
        "x = torch.ones(2, 3, device='cuda')\nnn.functional.cross_entropy(x, torch.zeros(2, dtype=torch.long))",
        MIXED + "…",
    ),
    "sum of two devices": (
        "torch.ones(2, device='cuda') + torch.ones(2)",
        MIXED + TWO,
    ),
    "sum of two GPUs": (
        "torch.ones(2, device='cuda') + torch.ones(2, device='cuda:1')",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devi"
        "ces, cuda:0 and cuda:1!",
    ),
    "in place with another device": (
        "x = torch.ones(2, device='cuda')\nx += torch.ones(2)",
        MIXED + TWO,
    ),
    "buffer forgotten": (
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.scale = torch.ones(2)\n"
        "        self.l = nn.Linear(2, 2)\n"
        "    def forward(self, x): return self.l(x) * self.scale\n"
        "M().cuda()(torch.ones(1, 2, device='cuda'))",
        MIXED + TWO,
    ),
    "numpy of a GPU": (
        "torch.ones(2, device='cuda').numpy()",
        "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy th"
        "e tensor to host memory first.",
    ),
    "numpy of a GPU, implicit": (
        "import numpy\nnumpy.asarray(torch.ones(2, device='cuda:1'))",
        "TypeError: can't convert cuda:1 device type tensor to numpy. Use Tensor.cpu() to copy th"
        "e tensor to host memory first.",
    ),
    "numpy of the CPU": (
        "torch.ones(2).numpy().tolist()",
        "[1.0, 1.0]",
    ),
    "index of a GPU for the CPU": (
        "torch.ones(2)[torch.tensor([0], device='cuda')]",
        "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "index of the CPU for a GPU": (
        "str(torch.ones(2, device='cuda:1')[torch.tensor([0])].device)",
        "cuda:1",
    ),
    "mask of the CPU for a GPU": (
        "str(torch.ones(2, device='cuda:1')[torch.tensor([True, False])].device)",
        "cuda:1",
    ),
    "number of the CPU": (
        "str((torch.ones(2, device='cuda:1') * torch.tensor(2.0)).device)",
        "cuda:1",
    ),
    "number of a GPU on the CPU": (
        "torch.ones(2) * torch.tensor(2.0, device='cuda')",
        MIXED + TWO,
    ),
    "item of a GPU": (
        "torch.ones(1, device='cuda:1').sum().item()",
        "1.0",
    ),
    "assignment of a CPU tensor": (
        "x = torch.zeros(2, device='cuda')\n"
        "x[0] = torch.tensor(1.0)\n"
        "x[:1] = torch.ones(1)\n"
        "str((x.tolist(), str(x.device)))",
        "([1.0, 0.0], 'cuda:0')",
    ),
    "cat of two devices": (
        "torch.cat([torch.ones(2, device='cuda'), torch.ones(2)])",
        MIXED + "…",
    ),
    "stack of two devices": (
        "torch.stack([torch.ones(2, device='cuda'), torch.ones(2)])",
        MIXED + "…",
    ),
    "embedding's index": (
        "nn.Embedding(3, 2).cuda()(torch.tensor([0]))",
        MIXED + "…",
    ),
    "position not on the device": (
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.e = nn.Embedding(4, 2)\n"
        "    def forward(self, x): return self.e(torch.arange(x.shape[1]))\n"
        "M().cuda()(torch.zeros(1, 3, dtype=torch.long, device='cuda'))",
        MIXED + "…",
    ),
    "out on another device": (
        "torch.add(torch.ones(2, device='cuda'), 1, out=torch.ones(2))",
        MIXED + "…",
    ),
    "gradient of another device": (
        "x = torch.ones(2, device='cuda')\nx.grad = torch.ones(2)",
        "RuntimeError: attempting to assign a gradient with device type 'cpu' to a tensor with de"
        "vice type 'cuda'. Please ensure that the gradient and the tensor are on the same device",
    ),
    "no GPU of this number": (
        "torch.ones(2, device='cuda:2')",
        "AcceleratorError: CUDA error: invalid device ordinal",
    ),
    "generator of the CPU for a GPU": (
        "torch.rand(2, device='cuda', generator=torch.Generator())",
        "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "pinning a GPU's tensor": (
        "torch.ones(2, device='cuda').pin_memory()",
        "RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    ),
    "each device has its generator": (
        "torch.manual_seed(0)\n"
        "a = torch.rand(2)\n"
        "torch.manual_seed(0)\n"
        "torch.rand(9, device='cuda'); nn.functional.dropout(torch.ones(9, device='cuda:1'))\n"
        "b = torch.rand(2)\n"
        "torch.equal(a, b)",
        "True",
    ),
    "GPUs have their generators": (
        "torch.cuda.manual_seed_all(3)\n"
        "a = torch.rand(2, device='cuda:1')\n"
        "torch.cuda.manual_seed_all(3)\n"
        "torch.rand(9, device='cuda:0')\n"
        "b = torch.rand(2, device='cuda:1')\n"
        "torch.equal(a, b)",
        "True",
    ),
    "seed of the current GPU only": (
        "torch.cuda.manual_seed_all(1)\n"
        "a = torch.rand(2, device='cuda:1').cpu()\n"
        "torch.cuda.manual_seed_all(1)\n"
        "torch.cuda.manual_seed(5)\n"
        "b = torch.rand(2, device='cuda:1').cpu()\n"
        "torch.equal(a, b)",
        "True",
    ),
    "seed does not touch the CPU": (
        "torch.manual_seed(0)\n"
        "a = torch.rand(2)\n"
        "torch.manual_seed(0)\n"
        "torch.cuda.manual_seed_all(7)\n"
        "torch.equal(a, torch.rand(2))",
        "True",
    ),
    "seed of all": (
        "torch.manual_seed(0)\n"
        "a = torch.rand(2, device='cuda')\n"
        "torch.manual_seed(0)\n"
        "torch.equal(a, torch.rand(2, device='cuda'))",
        "True",
    ),
    "random state": (
        "s = torch.cuda.get_rng_state(1)\n"
        "a = torch.rand(2, device='cuda:1')\n"
        "torch.cuda.set_rng_state(s, 1)\n"
        "torch.equal(a, torch.rand(2, device='cuda:1'))",
        "True",
    ),
    "random in place": (
        "torch.manual_seed(1)\n"
        "a = torch.empty(3, device='cuda').normal_()\n"
        "b = torch.rand(2)\n"
        "torch.manual_seed(1)\n"
        "torch.equal(b, torch.rand(2))",
        "True",
    ),
    "generator's device": (
        "str((str(torch.Generator('cuda').device), str(torch.Generator(device='cuda:1').device), "
        "str(torch.Generator().device)))",
        "('cuda:0', 'cuda:1', 'cpu')",
    ),
    "fork_rng": (
        "torch.manual_seed(0)\n"
        "a = torch.rand(2, device='cuda')\n"
        "torch.manual_seed(0)\n"
        "with torch.random.fork_rng(): torch.rand(5, device='cuda')\n"
        "torch.equal(a, torch.rand(2, device='cuda'))",
        "True",
    ),
    "statistics of memory": (
        "m = torch.cuda.memory_stats()\n"
        "str([m[name] >= 0 for name in ('active.all.peak', 'segment.all.current', 'allocation.all.current')])",
        "[True, True, True]",
    ),
    "versions of libraries": (
        "cudnn = torch.backends.cudnn\n"
        "str((cudnn.version() > 0, cudnn.is_available(), torch.backends.cuda.is_built()))",
        "(True, True, True)",
    ),
    "ranges of profilers": (
        "torch.cuda.profiler.start(); torch.cuda.profiler.stop()\n"
        "with torch.autograd.profiler.emit_nvtx(): x = torch.ones(1, device='cuda') * 2\n"
        "x.item()",
        "2.0",
    ),
    "package of GPU kernels": (
        "import bitsandbytes",
        "ModuleNotFoundError: No module named 'bitsandbytes' (simulated GPUs: its kernels need a real GPU; …",
    ),
    "package asked for": ("import importlib.util\nimportlib.util.find_spec('bitsandbytes')", "None"),
    "capability and names": (
        "str((torch.cuda.get_device_capability(), torch.cuda.get_device_capability(1), torch.cuda.get_device_name(1),"
        " torch.cuda.get_arch_list(), torch.cuda.get_gencode_flags()))",
        "((8, 0), (8, 0), 'simulated GPU (CPU)', ['sm_80'], '')",
    ),
    "properties": (
        "p = torch.cuda.get_device_properties(1)\n"
        "str((p.name, p.major, p.minor, p.warp_size, p.is_integrated, p.is_multi_gpu_board, p.L2_cache_size, p.uuid,"
        " p.pci_bus_id, p.pci_device_id, p.pci_domain_id, p.gcnArchName))",
        "('simulated GPU (CPU)', 8, 0, 32, 0, 0, 41943040, 'simulated-1', 1, 0, 0, '')",
    ),
    "limits of a block": (
        "p = torch.cuda.get_device_properties()\n"
        "str((p.max_threads_per_multi_processor, p.max_threads_per_block, p.regs_per_multiprocessor,"
        " p.shared_memory_per_block, p.shared_memory_per_multiprocessor, p.shared_memory_per_block_optin))",
        "(2048, 1024, 65536, 49152, 167936, 166912)",
    ),
    "memory of two GPUs": (
        "import os\nwhole = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')\n"
        "free, total = torch.cuda.mem_get_info()\n"
        "str((total == whole // 2, 0 < free <= total, torch.cuda.get_device_properties(0).total_memory == total,"
        " torch.cuda.cudart().cudaMemGetInfo(0)[1] == total))",
        "(True, True, True, True)",
    ),
    "what a GPU can do": (
        "c = torch.cuda\nstr([c.is_available(), c.is_initialized(), c._is_in_bad_fork(), c.device_count(),"
        " c.can_device_access_peer(0, 1), c.is_bf16_supported(), c.is_bf16_supported(False), c.is_tf32_supported(),"
        " c.get_sync_debug_mode(), c.is_current_stream_capturing()])",
        "[True, True, False, 2, True, True, True, True, 0, False]",
    ),
    "versions": (
        "str((torch.cuda.nccl.version(), torch.cuda.nccl.is_available([]), torch.backends.cudnn.version(),"
        " torch.backends.cudnn.is_available(), torch.backends.cuda.is_built()))",
        "((2, 27, 5), False, 91002, True, True)",
    ),
    "negative device": (
        "torch.cuda.set_device(1); torch.cuda.set_device(-1)\nstr(torch.cuda.current_device())",
        "1",
    ),
    "calls of the runtime": (
        "r = torch.cuda.cudart()\nstr([r.cudaError.success, r.cudaProfilerStart(), r.cudaProfilerStop(),"
        " r.cudaHostRegister(0, 1, 2), r.cudaHostUnregister(0), torch.cuda.check_error(0)])",
        "[0, 0, 0, 0, 0, None]",
    ),
    "error of the runtime": (
        "torch.cuda.check_error(2)",
        "RuntimeError: CUDA error 2",
    ),
    "marks of a profiler": (
        "n = torch.cuda.nvtx\nstr([n.range_push('a'), n.range_pop(), n.mark('a'), n.range_end(n.range_start('a'))])",
        "[0, 0, 0, 0]",
    ),
    "accelerator": (
        "a = torch.accelerator\na.set_device_index(1)\n"
        "str((a.current_accelerator(), a.is_available(), a.device_count(), a.current_device_index()))",
        "(device(type='cuda'), True, 2, 1)",
    ),
    "numbers that the allocator has": (
        "s = torch.cuda.memory_stats()\n"
        "str((len(s), s['max_split_size'], s['num_ooms'], s['segment.all.current'], s['oversize_segments.peak'],"
        " s['allocated_bytes.small_pool.peak'], s['inactive_split_bytes.all.current'],"
        " s['inactive_split_bytes.all.peak'], s['allocated_bytes.large_pool.peak'] > 0,"
        " s['allocated_bytes.all.freed'] == s['allocated_bytes.all.peak'] - s['allocated_bytes.all.current']))",
        "(122, -1, 0, 0, 0, 0, 0, 0, True, True)",
    ),
    "shares of the memory": (
        "c = torch.cuda\nstr((0 <= c.memory_usage() < 100, c.get_per_process_memory_fraction(),"
        " c.get_allocator_backend(), c.memory_snapshot(), c.list_gpu_processes(), c.memory_summary(1)[:16]))",
        "(True, 1.0, 'native', [], '', 'simulated GPU 1:')",
    ),
    "memory that a tensor takes": (
        "b = torch.cuda.memory_allocated()\nx = torch.ones(20 * 2**20, device='cuda')\n"
        "grown = torch.cuda.memory_allocated() - b\n"
        "str((70 * 2**20 < grown < 100 * 2**20, torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()))",
        "(True, True)",
    ),
    "time between two events": (
        "import time\na, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "s = time.perf_counter(); a.record(); time.sleep(0.01); b.record(); t = time.perf_counter() - s\n"
        "str((10 <= a.elapsed_time(b) <= 1e3 * t, a.query(), b.elapsed_time(a) < 0, a.device.index))",
        "(True, True, True, 0)",
    ),
    "event without timing": (
        "torch.cuda.Event().elapsed_time(torch.cuda.Event(enable_timing=True))",
        "RuntimeError: Both events must be created with argument 'enable_timing=True'.",
    ),
    "later event without timing": (
        "a = torch.cuda.Event(True)\na.record(); a.elapsed_time(torch.cuda.Event())",
        "RuntimeError: Both events must be created with argument 'enable_timing=True'.",
    ),
    "event that was not recorded": (
        "a, b = torch.cuda.Event(True), torch.cuda.Event(True)\na.record(); a.elapsed_time(b)",
        "RuntimeError: Both events must be recorded before calculating elapsed time.",
    ),
    "streams": (
        "a, b = torch.cuda.Stream(), torch.cuda.Stream(1, priority=-1)\n"
        "str((a.device_index, b.device_index, a.priority, b.priority, b.stream_id - a.stream_id,"
        " a.cuda_stream == a.stream_id, torch.cuda.Stream.priority_range(), a.query(), a.is_capturing()))",
        "(0, 1, 0, -1, 1, True, (0, -5), True, False)",
    ),
    "current stream": (
        "a, b = torch.cuda.Stream(), torch.cuda.Stream(1)\nseen = []\n"
        "with torch.cuda.stream(a):\n"
        "    seen += [torch.cuda.current_stream() is a, torch.cuda.current_stream(1) is a]\n"
        "    with b:\n"
        "        seen += [torch.cuda.current_stream() is b, torch.cuda.current_device()]\n"
        "    seen += [torch.cuda.current_stream() is a, torch.cuda.current_device()]\n"
        "with torch.cuda.stream(None): seen += [torch.cuda.current_stream() is torch.cuda.default_stream()]\n"
        "seen += [torch.cuda.default_stream(1) is torch.cuda.default_stream(1), torch.cuda.default_stream(1) is"
        " torch.cuda.default_stream(0), a.record_event().query()]\nstr(seen)",
        "[True, False, True, 1, True, 0, True, True, False, True]",
    ),
    "graph is captured, then replayed": (
        "x = torch.ones(2, device='cuda'); y = torch.zeros(2, device='cuda'); g = torch.cuda.CUDAGraph(); seen = []\n"
        "with torch.cuda.graph(g):\n"
        "    seen += [torch.cuda.is_current_stream_capturing()]\n    y += x; z = y * 2\n"
        "seen += [torch.cuda.is_current_stream_capturing(), y.tolist(), g.pool(), torch.cuda.graph_pool_handle()]\n"
        "g.replay(); g.replay(); seen += [y.tolist(), z.tolist()]\n"
        "x += 4; g.replay(); seen += [y.tolist(), z.tolist()]\ng.reset(); g.replay(); seen += [y.tolist()]\nstr(seen)",
        "[True, False, [0.0, 0.0], (0, 0), (0, 0), [2.0, 2.0], [4.0, 4.0], [7.0, 7.0], [14.0, 14.0], [7.0, 7.0]]",
    ),
    "number read in a capture": (
        "x = torch.ones(1, device='cuda')\nwith torch.cuda.graph(torch.cuda.CUDAGraph()): x.item()",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ),
    "number of the CPU read in a capture": (
        "x, seen = torch.ones(1), []\nwith torch.cuda.graph(torch.cuda.CUDAGraph()): seen += [x.item()]\nstr(seen)",
        "[1.0]",
    ),
    "generator of a GPU": (
        "g, c = torch.Generator('cuda:1'), torch.Generator()\nstr((g.device, c.device))",
        "(device(type='cuda', index=1), device(type='cpu'))",
    ),
    "generator of a GPU for the CPU": (
        "torch.rand(2, generator=torch.Generator('cuda'))",
        "RuntimeError: Expected a 'cpu' device type for generator but found 'cuda'",
    ),
    "states of the generators": (
        "torch.cuda.manual_seed_all(3); kept = torch.cuda.get_rng_state_all()\n"
        "a = [torch.rand(1, device=d).item() for d in ('cuda:0', 'cuda:1')]\n"
        "torch.cuda.set_rng_state_all(kept)\nb = [torch.rand(1, device=d).item() for d in ('cuda:0', 'cuda:1')]\n"
        "torch.cuda.set_rng_state(kept[1], 1)\n"
        "str((a == b, a[0] == a[1], torch.rand(1, device='cuda:1').item() == a[1],"
        " torch.rand(1, device='cuda:0').item() == a[0], torch.cuda.initial_seed(), len(kept), str(kept[0].device)))",
        "(True, True, True, False, 3, 2, 'cpu')",
    ),
    "state of a generator on a GPU": (
        "torch.cuda.set_rng_state(torch.cuda.get_rng_state().cuda())",
        "TypeError: RNG state must be a torch.ByteTensor",
    ),
}
"""By name: the statements and the text that CUDA gives; … stands for the rest of a line."""

OPERATIONS = (
    "g + g",
    "g + c",
    "c + g",
    "g + h",
    "g + z",
    "z + g",
    "c + s",
    "s + c",
    "z + s",
    "g * 2",
    "g.mul_(c)",
    "g.add_(z)",
    "c.add_(s)",
    "torch.where(g > 0, g, z)",
    "torch.where(g > 0, g, c)",
    "torch.where(c > 0, g, g)",
    "torch.maximum(g, c)",
    "torch.lerp(g, c, 0.5)",
    "torch.clamp(g, z)",
    "torch.clamp(g, c)",
    "g.masked_fill(c > 0, 1.0)",
    "g.masked_fill(g > 0, z)",
    "torch.addcmul(g, g, c)",
    "g == c",
    "torch.logical_and(g > 0, c > 0)",
    "torch.pow(g, z)",
    "torch.pow(z, g)",
    "torch.atan2(g, h)",
    "torch.isclose(g, c)",
    "g @ g",
    "g @ c",
    "c @ g",
    "torch.mm(g, h)",
    "F.linear(g, g, c[0])",
    "F.linear(g, c)",
    "torch.einsum('ij,jk->ik', g, c)",
    "torch.addmm(g, g, c)",
    "torch.bmm(g[None], c[None])",
    "torch.dot(g[0], c[0])",
    "torch.outer(g[0], c[0])",
    "torch.baddbmm(g[None], g[None], g[None])",
    "torch.cat([g, g])",
    "torch.cat([g, c])",
    "torch.stack([g, c])",
    "torch.hstack([c, g])",
    "torch.index_select(g, 0, i)",
    "torch.index_select(g, 0, j)",
    "torch.index_select(c, 0, j)",
    "torch.gather(g, 0, i[:, None])",
    "torch.take_along_dim(g, i[:, None], 0)",
    "g.scatter(0, i[:, None], 1.0)",
    "g.scatter_add(0, j[:, None], c)",
    "g.index_add(0, j, c[:2])",
    "F.embedding(i, g)",
    "F.embedding(j, g)",
    "F.embedding(j, c)",
    "g.index_copy(0, i, g[:2])",
    "torch.take(g, i)",
    "torch.isin(j, i)",
    "g.sum()",
    "g.max(0)[1]",
    "torch.topk(g, 2)[1]",
    "torch.argmax(c)",
    "torch.sort(g)[0]",
    "g.nonzero()",
    "torch.arange(3)",
    "g > 0",
    "torch.arange(3, device='cuda:1')",
    "g.unbind(0)[1]",
    "torch.split(g, 2)[0]",
    "torch.chunk(c, 2)[0]",
    "g.T",
    "g.expand(2, 4, 4)",
    "torch.zeros_like(g)",
    "g.new_ones(2)",
    "c.new_ones(2, device='cuda:1')",
    "torch.empty_like(c)",
    "torch.full((2,), 1.0, device='cuda')",
    "torch.broadcast_to(g, (2, 4, 4))",
    "torch.tril(g)",
    "torch.linspace(0, 1, 3)",
    "g.half()",
    "g.to(c)",
    "c.to(h)",
    "g.type_as(c)",
    "g.to('cpu')",
    "g.to('cuda:1')",
    "g.cpu().to(torch.float64)",
    "c.to(torch.float64)",
    "torch.eye(2, device='cuda')",
    "g.copy_(c)",
    "torch.bernoulli(g)",
    "torch.multinomial(g, 1)",
    "torch.randn_like(h)",
    "torch.cumsum(g, 0)",
    "torch.tensor([1.0, 2.0])",
    "F.softmax(g, -1)",
    "F.layer_norm(g, (4,), g[0], c[0])",
    "F.layer_norm(g, (4,), g[0], g[0])",
    "F.cross_entropy(g, j4)",
    "F.cross_entropy(g, i4)",
    "F.mse_loss(g, c)",
    "F.mse_loss(g, g)",
    "F.nll_loss(g, i4)",
    "F.binary_cross_entropy_with_logits(g, c)",
    "F.dropout(g)",
    "F.gelu(c)",
    "F.conv1d(g[None], g[:, :, None], c[0])",
    "F.conv1d(g[None], c[:, :, None])",
    "F.conv1d(g[None], g[:, :, None], g[0])",
    "F.pad(g, (1, 1))",
    "F.scaled_dot_product_attention(g[None], g[None], c[None])",
    "F.scaled_dot_product_attention(g[None], g[None], g[None])",
    "F.batch_norm(g, c[0], c[1], training=True)",
    "F.batch_norm(g, g[0], g[1], training=True)",
    "F.kl_div(g, c)",
    "F.cosine_similarity(g, c)",
    "F.prelu(g, c[0, :1])",
    "F.rms_norm(g, (4,), c[0])",
    "F.group_norm(g, 2, g[0])",
    "F.one_hot(j)",
    "F.interpolate(g[None], 2)",
)
"""Expressions to compare with torch's fake tensors."""
