"""A torch that lacks a name which Frog's agent needs: the agent names the version, the name and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

import frog
from frog.core.errors import LaunchError
from frog.launch.torchrun import agent, elastic

PROGRAM = ["--nproc-per-node", "1", "--no-python", "true"]


@pytest.mark.parametrize("name", elastic._METHODS)
def test_agent_refuses_a_torch_without_an_overridden_method(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for owner in [kind for kind in LocalElasticAgent.__mro__ if name in vars(kind)]:
        monkeypatch.delattr(owner, name)
    assert agent.main(["reports", *PROGRAM]) == LaunchError.exit_code
    said = capsys.readouterr().err
    assert said.startswith(f"frog run: torch {torch.__version__} has no LocalElasticAgent.{name}")
    assert "try: " in said


def test_fork_on_request_is_refused_where_torch_has_no_place_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(SubprocessHandler, "_popen")
    monkeypatch.setenv("FROG_START", "fork")
    assert agent.main(["reports", "--nproc-per-node", "1", "-m", "frog.train"]) == LaunchError.exit_code
    assert f"FROG_START=fork: torch {torch.__version__} has no SubprocessHandler._popen" in capsys.readouterr().err


def test_ranks_of_an_unknown_torch_are_refused_by_the_name_of_the_missing_field() -> None:
    context: Any = SimpleNamespace(subprocess_handlers={})
    holder: Any = SimpleNamespace(_pcontext=context)
    with pytest.raises(LaunchError, match=r"SimpleNamespace\._running_local_ranks") as error:
        elastic.Ranks(holder)
    assert "on_loss" in str(error.value.hint)


def test_replacement_is_refused_where_torch_starts_ranks_with_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    holder: Any = SimpleNamespace(_pcontext=SimpleNamespace(**dict.fromkeys(elastic._CONTEXT)))
    monkeypatch.setattr(elastic.processes, "get_subprocess_handler", lambda entrypoint, args, env: None)
    with pytest.raises(LaunchError, match=r"--replace.*local_rank_id"):
        elastic.Ranks(holder).start(0, (), None)


def test_undocumented_names_of_torchs_agent_are_used_in_one_file() -> None:
    names = re.compile(r"_pcontext|_running_local_ranks|subprocess_handler|_state_holder|_popen|launcher\.api")
    users = [path.name for path in Path(frog.__file__).parent.rglob("*.py") if names.search(path.read_text())]
    assert users == ["elastic.py"]
