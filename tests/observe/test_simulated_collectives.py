"""What simulated GPUs change of torch.distributed's functions, each around a function that records its arguments."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist

simulated: Any = import_module("frog.observe.hook.frog_simulated_gpus.distributed")


class Recorded:
    """A function of torch's that returns its own arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        *[("nccl", "gloo"), ("NCCL", "gloo"), (None, "gloo"), ("", "gloo"), ("gloo", "gloo"), ("mpi", "mpi")],
        *[("cpu:gloo,cuda:nccl", "gloo"), ("cpu:gloo,cuda:other", "cpu:gloo"), ("cpu:gloo", "cpu:gloo")],
    ],
)
def test_backend_of_the_cpu_takes_the_place_of_nccl(asked: str | None, backend: str) -> None:
    assert simulated.gloo_for(asked) == backend


def test_flat_collectives_ignore_shapes_as_nccl_does() -> None:
    def gather(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        return output_tensor, input_tensor, group, async_op

    flat = simulated._flat(gather)
    into, own = torch.zeros(4, 2), torch.ones(2, 2)
    for args, kwargs in (
        ((into, own, "g", True), {}),
        ((into,), {"input_tensor": own, "group": "g", "async_op": True}),
        ((), {"output_tensor": into, "input_tensor": own, "group": "g", "async_op": True}),
    ):
        found = flat(*args, **kwargs)
        assert [tensor.shape for tensor in found[:2]] == [(8,), (4,)]
        assert found[2:] == ("g", True)
        found[0].fill_(3)
        assert into.tolist() == [[3.0, 3.0]] * 4
    turned = into.t()
    assert [tensor.shape for tensor in flat(turned, own)[:2]] == [(2, 4), (2, 2)]  # gloo says why


def test_tensors_of_several_sizes_are_gathered_by_broadcasts(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 1)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, group, group_src: sent.append((tensor.tolist(), group_src)))
    gather = simulated._all_gather(Recorded())
    same = [torch.zeros(2), torch.zeros(2)]
    (given, _, group, async_op), _ = gather(same, torch.ones(2), "g", True)
    assert (given is same, group, async_op, sent) == (True, "g", True, [])
    parts = [torch.zeros(1), torch.zeros(2)]
    assert gather(parts, torch.ones(2)) is None
    assert sent == [([0.0], 0), ([1.0, 1.0], 1)]
    done = gather(parts, torch.ones(2), None, True)
    assert (done.wait(), done.is_completed(), done.get_future().value()) == (True, True, [])


def test_tensors_of_any_sizes_are_exchanged_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange(output: Any, given: Any, output_sizes: Any, input_sizes: Any, group: Any) -> None:
        assert (given.tolist(), output_sizes, input_sizes, group) == ([1.0, 2.0, 3.0, 4.0], [1, 2], [3, 1], "g")
        output.copy_(torch.tensor([5.0, 6.0, 7.0]))

    monkeypatch.setattr(dist, "all_to_all_single", exchange)
    call = simulated._all_to_all(Recorded())
    out, own = [torch.zeros(1), torch.zeros(2, 1)], [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])]
    assert call(out, own, "g") is None
    assert [part.tolist() for part in out] == [[5.0], [[6.0], [7.0]]]
    assert call(out, own, "g", True).wait()


def test_groups_are_split_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "new_group", lambda ranks, timeout: made.append((ranks, timeout)) or ranks)
    split = simulated._split_group(Recorded())
    assert split("parent", [[0, 1], [2, 3], [4]], 9) == [2, 3]
    assert made == [([0, 1], 9), ([2, 3], 9), ([4], 9)]
    assert split("parent") is None


def test_options_of_nccl_are_dropped() -> None:
    options = simulated.ProcessGroupNCCL.Options()
    assert options.is_high_priority_stream is False
    subgroups = simulated._new_subgroups(Recorded())
    assert subgroups(2, backend="nccl", pg_options=options, device_id=0) == (
        (2,),
        {"backend": "gloo", "pg_options": None},
    )
    assert subgroups(2, pg_options="own") == ((2,), {"pg_options": "own"})
    group = simulated._new_group(Recorded())([0], None, "nccl", options)
    assert group == (([0], None, "gloo", None), {})
    assert simulated._new_group(Recorded())([0]) == (([0], None, None), {})
    assert simulated._barrier(lambda group, async_op: (group, async_op))("g", True) == ("g", True)
    assert simulated._coalescing(Recorded())("g", "cuda", True) == (("g", None, True), {})


@pytest.mark.parametrize(
    ("asked", "kind"), [("cuda", "cpu"), ("cuda:1", "cpu"), ("cpu", "cpu"), ("meta", "meta"), (3, 3)]
)
def test_mesh_of_gpus_is_one_of_cpus(asked: Any, kind: Any) -> None:
    assert simulated._mesh(Recorded())(asked, (2,)) == ((kind, (2,)), {})
    assert simulated._mesh_method(Recorded())("self", asked) == (("self", kind), {})
    assert simulated._mesh_method(Recorded())("self", device_type=asked) == (("self",), {"device_type": kind})


def test_future_that_gloo_does_not_have_is_complete_after_a_wait() -> None:
    waited: list[bool] = []

    class Work:
        def wait(self) -> None:
            waited.append(True)

    def missing(work: Any) -> Any:
        raise RuntimeError

    assert simulated._get_future(missing)(Work()).value() == []
    assert waited == [True]
    assert simulated._get_future(lambda work: "own")(Work()) == "own"
