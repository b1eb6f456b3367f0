"""Tensors that know their simulated device: small cases with what CUDA gives, and torch's fake tensors as an oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from simulated_device_cases import CASES, OPERATIONS
from torch._subclasses.fake_tensor import FakeTensorMode

from frog.observe.environment import simulated_gpus

PROGRAM = Path(__file__).with_name("simulated_device_program.py")


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    env = {**os.environ, **simulated_gpus(2)}
    done = subprocess.run([sys.executable, PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_simulated_gpu_gives_what_cuda_gives(name: str, seen: dict[str, Any]) -> None:
    got, expected = seen["cases"][name], CASES[name][1]
    if ": " in expected.partition("(")[0]:  # an error, whose text may say more
        assert got.startswith(expected.removesuffix("…"))
    else:
        assert got == expected


def _device_of_fake(operation: str) -> str:
    """Return what torch's fake tensors of CUDA say, without a GPU: a device, `mixed`, or another error."""
    with warnings.catch_warnings(action="ignore"), FakeTensorMode():
        g, h, c = torch.ones(4, 4, device="cuda:0"), torch.ones(4, 4, device="cuda:1"), torch.ones(4, 4)
        i, i4, z = torch.zeros(2, dtype=torch.long), torch.zeros(4, dtype=torch.long), torch.zeros(())
        names = {"g": g, "h": h, "c": c, "i": i, "j": i.to("cuda:0"), "z": z, "s": z.to("cuda:0")}
        names |= {"i4": i4, "j4": i4.to("cuda:0"), "torch": torch, "F": F}
        try:
            return str(eval(operation, names).device)
        except Exception as error:
            return "mixed" if "same device" in str(error) else type(error).__name__


def test_operations_have_the_devices_of_fake_tensors(seen: dict[str, Any]) -> None:
    """Compare where fake tensors have an answer; some of their operations ask for CUDA itself."""
    expected = {text: _device_of_fake(text) for text in OPERATIONS}
    answered = {
        text: device for text, device in expected.items() if device == "mixed" or ":" in device or device == "cpu"
    }
    assert len(answered) > 85
    assert {text: seen["operations"][text] for text in answered} == answered
