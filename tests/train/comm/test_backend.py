"""The properties of each backend: the meaning of its errors, and its devices."""

from __future__ import annotations

import typing

import pytest
import torch

from frog.core.config.run_config import CommConfig
from frog.core.errors import Cause, UsageError
from frog.train.comm.backend import BACKENDS, Backend, choose_backend

CPU = torch.device("cpu")
GLOO, NCCL = BACKENDS["gloo"], BACKENDS["nccl"]


def test_run_file_can_name_every_backend() -> None:
    (names,) = [hint for name, hint in typing.get_type_hints(CommConfig).items() if name == "backend"]
    assert set(typing.get_args(names)) == {"auto", *BACKENDS}


def test_auto_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FROG_BACKEND", raising=False)
    assert choose_backend("auto", CPU) is GLOO
    assert choose_backend("auto", torch.device("cuda", 0)) is NCCL
    assert choose_backend("auto", torch.device("mps")) is GLOO  # a world of one


def test_environment_selects_the_backend_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_BACKEND", "frog")
    assert choose_backend("auto", CPU) is BACKENDS["frog"]
    assert choose_backend("auto", torch.device("cuda", 0)) is NCCL  # the selected one does not support CUDA
    assert choose_backend("gloo", CPU) is GLOO
    monkeypatch.setenv("FROG_BACKEND", "toad")
    with pytest.raises(UsageError, match="FROG_BACKEND=toad: choose from gloo, nccl, frog"):
        choose_backend("auto", CPU)


def test_backend_that_does_not_support_the_device_is_rejected() -> None:
    assert choose_backend("gloo", CPU) is GLOO
    with pytest.raises(UsageError, match=r"comm\.backend=nccl supports cuda, but this rank computes on cpu"):
        choose_backend("nccl", CPU)


@pytest.mark.parametrize(
    ("backend", "words", "cause"),
    [
        (GLOO, "[/g/pair.cc:1] Connection closed by peer [127.0.0.1]:4. This is typically caused by it", "closed"),
        (GLOO, "[/g/pair.cc:1] Read error [127.0.0.1]:4: Connection reset by peer", "closed"),
        (GLOO, "[/g/buffer.cc:1] Timed out waiting 10000ms for recv operation to complete", "timed_out"),
        (GLOO, "[/g/pair.cc:1] Application timeout caused pair closure", "timed_out"),
        (GLOO, "[enforce fail at /g/pair.cc:1] op.preamble.length <= op.nbytes. 80 vs 40", "mismatch"),
        (GLOO, "The client socket has timed out after 3000ms while trying to connect to (x, 1).", "timed_out"),
        (GLOO, "something else", None),
        (NCCL, "NCCL error: remote process exited or there was a network error", "closed"),
        (NCCL, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", "timed_out"),
    ],
)
def test_errors_of_torch_are_classified(backend: Backend, words: str, cause: Cause | None) -> None:
    assert backend.cause_of(RuntimeError(words)) == cause


def test_gloo_errors_are_shortened() -> None:
    words = "[/g/pair.cc:1] Connection closed by peer [127.0.0.1]:4. This is typically caused by it"
    assert GLOO.shorten(RuntimeError(words)) == "Connection closed by peer [127.0.0.1]:4."
    assert GLOO.shorten(RuntimeError("")) == "RuntimeError"
