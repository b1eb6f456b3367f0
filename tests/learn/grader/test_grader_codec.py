"""The data between judge and learner: plain values and tensors, in frames that arrive in pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frog.learn.grader.codec import Frames, NotPlain, pack, unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_tensor_survives_a_round_trip(dtype: torch.dtype) -> None:
    for shape in ((2, 3), (), (0, 4)):
        tensor = (torch.randn(shape) * 3).to(dtype)
        found = unpack(pack(tensor)[8:])
        assert found.dtype == dtype
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor)


def test_plain_values_survive_a_round_trip() -> None:
    value = {
        "a": [1, 2.5, None, True, "é"],
        "b": {"c": b"x"},
        "n": float("inf"),
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    found = unpack(pack({**value, "np": np.arange(3), "one": np.float32(1.5)})[8:])
    assert found["a"] == value["a"]
    assert found["np"].tolist() == [0, 1, 2]
    assert found["one"] == 1.5
    assert not found["p"].requires_grad


def test_frames_are_decoded_from_partial_reads() -> None:
    data = pack({"one": 1}) + pack([torch.arange(5)])
    frames, found = Frames(), []
    for i in range(len(data)):
        found += frames.feed(data[i : i + 1])
    assert found[0] == {"one": 1}
    assert found[1][0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [object(), lambda: None, {1, 2} and object])
def test_packing_a_value_that_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(NotPlain):
        pack(value)


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x01" + b"\0" * 7 + b"\xc1"])
def test_invalid_frame_is_refused(data: bytes) -> None:
    with pytest.raises(NotPlain):
        list(Frames().feed(data))
