"""The ranks of config/gpt_pipeline.py under torch's MemTracker and without Frog: prints the peaks of allocated bytes.

    python tracked_pipeline.py "RANK ..." "SCHEDULE ..." GPT_PIPELINE.py ARGUMENTS

The program runs two steps with torch's fake process group and fake tensors on the CPU, and with CUDA's attention. Its
stages are given the shapes that they would send each other.
"""

import functools
import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as meshes
import torch.distributed.fsdp as fsdp
import torch.distributed.pipelining as pipelining
import torch.distributed.pipelining.schedules as schedules
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _WeakRefInfo
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

WORLD_SIZE, STEPS = 8, 2
names = {}


class Tracker(MemTracker):
    """Bytes without statistics of modules, which MemTracker refuses for modules that run several times in a step."""

    def _pre_fw_hook(self, *args):
        """Do nothing."""

    _post_fw_hook = _pre_bw_hook = _post_bw_hook = _pre_fw_hook


class Stage(pipelining.PipelineStage):
    def __init__(self, module, index, num_stages, device, group):
        args, meta = names["args"], functools.partial(torch.empty, device="meta")
        hidden = meta(1, args.length, args.width, dtype=torch.bfloat16, requires_grad=True)
        inputs = hidden if index else meta(1, args.length, dtype=torch.int64)
        is_last = index == num_stages - 1
        outputs = meta(1, args.length, args.vocab, dtype=torch.bfloat16, requires_grad=True) if is_last else hidden
        super().__init__(module, index, num_stages, torch.device("cpu"), inputs, outputs, group=group)


def know_shapes(schedule, stages, *args):
    """Say that the stages were given their shapes; torch's own function asks the other ranks for theirs."""
    for stage in stages:
        stage._inference_mode = schedules.InferenceMode.STATIC


def blocks(winfo):
    """Return a storage's bytes as CUDA allocates them; MemTracker rounds only those of a CUDA device."""
    return -(-winfo.size * winfo.element_size // 512) * 512


def attention(query, key, value, is_causal):
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]


def without_modes(function):
    def call(*args, **kwargs):
        with _disable_current_modes():
            return function(*args, **kwargs)

    return functools.wraps(function)(call)


def peak_of(program, source):
    """Return the most bytes that live at once in a process of the program."""
    names.clear()
    with FakeTensorMode(allow_non_fake_inputs=True), Tracker() as tracker:
        exec(compile(source, program, "exec"), names)
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


ranks, which, program = sys.argv[1].split(), sys.argv[2].split(), Path(sys.argv[3])
arguments = sys.argv[3:]
start = dist.init_process_group
dist.init_process_group = torch.cuda.set_device = lambda name: None
torch.nn.functional.scaled_dot_product_attention = attention
meshes.init_device_mesh, fsdp.fully_shard = without_modes(meshes.init_device_mesh), without_modes(fsdp.fully_shard)
meshes.DeviceMesh.__getitem__ = without_modes(meshes.DeviceMesh.__getitem__)
derive = ShardingPropagator._propagate_tensor_meta_non_cached  # runs operations on whole tensors, for their shapes
ShardingPropagator._propagate_tensor_meta_non_cached = without_modes(derive)
pipelining.PipelineStage = Stage
schedules._PipelineSchedule._warmup_p2p = know_shapes
_WeakRefInfo._calculate_mem_consumed = blocks
source = program.read_text().replace('"cuda", dist.get_rank() % torch.cuda.device_count()', '"cpu"')
source = source.replace('"cuda"', '"cpu"').replace("range(100)", f"range({STEPS})")
source, _, _ = source.partition("    if losses and")  # which asks for a value
for schedule, rank in itertools.product(which, map(int, ranks)):
    sys.argv = [*arguments, f"--schedule={schedule}"]
    start("fake", store=FakeStore(), rank=rank, world_size=WORLD_SIZE)
    print(schedule, rank, peak_of(program, source), flush=True)
    dist.destroy_process_group()
