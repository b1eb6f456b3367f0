"""All names of torch's agent that Frog's agent uses; torch does not document most of them.

torch may rename any of them in any release. `check_agent` looks for them before the agent starts, `Ranks` when it uses
them; the error names the missing name and the version of torch. docs/development/torch-versions.md lists the tested
versions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed.elastic.multiprocessing.api as processes
import torch.distributed.elastic.rendezvous.dynamic_rendezvous as rendezvous
import torch.distributed.launcher.api as launcher
import torch.distributed.run as torchrun
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from frog.core.env import attempt_number
from frog.core.errors import LaunchError
from frog.launch.rank_output import mark, pipe_path

TESTED = "2.9 to 2.15"

_METHODS = ("_rendezvous", "_start_workers", "_monitor_workers", "_exit_barrier")
"""Methods of torch's agent that Frog's agent overrides."""
_STATE = ("_worker_group", "_remaining_restarts", "_pcontext")
_CONTEXT = ("subprocess_handlers", "_running_local_ranks", "error_files", "entrypoint", "envs", "stdouts", "stderrs")
_HANDLER = ("entrypoint", "args", "env", "stdout", "stderr", "local_rank_id", "numa_options")
"""Arguments of the function that starts a rank's process."""

_PLAIN_TORCHRUN = f"a torch from {TESTED}, or plain torchrun: torchrun --nproc_per_node=N train.py RUN.toml"


def unsupported(feature: str, name: str, hint: str) -> LaunchError:
    """Return the error for a version of torch without `name`, which `feature` needs."""
    return LaunchError(f"{feature}: torch {torch.__version__} has no {name}; Frog is tested with torch {TESTED}", hint)


def _require(owner: object, owner_name: str, names: tuple[str, ...], feature: str, hint: str) -> None:
    """Raise the error of `unsupported` for the first of `names` that a torch object lacks."""
    for name in names:
        if not hasattr(owner, name):
            raise unsupported(feature, f"{owner_name}.{name}", hint)


def check_agent() -> None:
    """Raise LaunchError if torch's agent lacks a method that Frog's agent overrides."""
    _require(launcher, launcher.__name__, ("LocalElasticAgent",), "frog run", _PLAIN_TORCHRUN)
    _require(LocalElasticAgent, "LocalElasticAgent", _METHODS, "frog run", _PLAIN_TORCHRUN)


def check_state(agent: LocalElasticAgent) -> None:
    """Raise LaunchError if torch's agent lacks a field that Frog's agent reads."""
    _require(agent, "LocalElasticAgent", _STATE, "frog run", _PLAIN_TORCHRUN)


def use_agent(agent: type[LocalElasticAgent]) -> None:
    """Make torchrun start `agent` in place of its own.

    Also makes torch's rendezvous name no methods in its events, which Frog's agent does not log: to find a name, torch
    reads the source of every function on the stack, which takes a tenth of the agent's start.
    """
    vars(launcher)["LocalElasticAgent"] = agent
    if hasattr(rendezvous, "get_method_name"):
        vars(rendezvous)["get_method_name"] = lambda depth=2: "method"


def rendezvous_round(group: WorkerGroup) -> int | None:
    """Return the number of earlier worlds of this rendezvous; None if it does not count them."""
    holder = getattr(group.spec.rdzv_handler, "_state_holder", None)
    return None if holder is None else int(holder.state.round)


# ---- the ranks' output -----------------------------------------------------------------------------------------------


class PipedOutput(DefaultLogsSpecs):
    """Sends stdout and stderr of each rank to its FIFO, which the launcher reads (frog.launch.rank_output)."""

    folder: ClassVar[Path]
    """Contains the FIFOs."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the FIFOs as log files; first write to each which rank the following output comes from."""
        logs: LogsDest = super().reify(envs)
        for local, env in envs.items():
            path = pipe_path(self.folder, local)
            path.write_bytes(mark(int(env["RANK"]), attempt_number()))
            logs.stdouts[local] = logs.stderrs[local] = str(path)
        return logs


def pipe_output(folder: Path) -> None:
    """Make torchrun send each rank's output to its FIFO in `folder`."""
    _require(torchrun, torchrun.__name__, ("_get_logs_specs_class",), "frog run", _PLAIN_TORCHRUN)
    PipedOutput.folder = folder
    vars(torchrun)["_get_logs_specs_class"] = lambda name: PipedOutput


# ---- ranks forked ----------------------------------------------------------------------------------------------------


class ForkingHandler(SubprocessHandler):
    """torch's handle of one rank's process, which it forks if possible."""

    fork: ClassVar[Callable[[tuple[str, ...], Mapping[str, str]], Any]]

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
        redirected = self._stdout is not None or self._stderr is not None
        return (None if redirected else type(self).fork(args, env)) or super()._popen(args, env)


def missing_to_fork() -> str | None:
    """Return the first name that forking needs and torch lacks; None if torch has all."""
    if not hasattr(processes, "get_subprocess_handler"):
        return f"{processes.__name__}.get_subprocess_handler"
    return None if hasattr(SubprocessHandler, "_popen") else "SubprocessHandler._popen"


def fork_ranks_with(fork: Callable[[tuple[str, ...], Mapping[str, str]], Any]) -> None:
    """Make torch start each rank with `fork(command, env)`, or as a new program if that returns None."""
    ForkingHandler.fork = staticmethod(fork)
    vars(processes)["get_subprocess_handler"] = ForkingHandler


# ---- ranks that run, ended, or are replaced --------------------------------------------------------------------------


class Ranks:
    """The processes of this node's ranks in torch's agent, by local rank.

    Raises:  LaunchError if torch stores them differently.
    """

    def __init__(self, agent: LocalElasticAgent) -> None:
        self._context: Any = agent._pcontext
        hint = f'a torch from {TESTED}, or comm.on_loss = "fail"'
        _require(self._context, type(self._context).__name__, _CONTEXT, "continuing without a lost rank", hint)

    @property
    def processes(self) -> dict[int, Any]:
        """Process of each rank, running or ended."""
        return {local: handler.proc for local, handler in self._context.subprocess_handlers.items()}

    @property
    def watched(self) -> set[int]:
        """Ranks that torch considers running. If you discard one, torch no longer reports its failure."""
        watched: set[int] = self._context._running_local_ranks
        return watched

    def error_file(self, local: int) -> str:
        return str(self._context.error_files[local])

    def start(self, local: int, args: tuple[str, ...], numa_options: Any) -> Any:
        """Start a process with the environment and output of a rank. Returns torch's handle for `replace`."""
        make = getattr(processes, "get_subprocess_handler", None)
        missing = set(_HANDLER).difference(inspect.signature(make).parameters) if make else {"get_subprocess_handler"}
        if make is None or missing:
            names = ", ".join(sorted(missing))
            raise unsupported("frog run --replace", names, f"a torch from {TESTED}, or frog run without --replace")
        return make(
            entrypoint=self._context.entrypoint,
            args=args,
            env=self._context.envs[local],
            stdout=self._context.stdouts[local],
            stderr=self._context.stderrs[local],
            local_rank_id=local,
            numa_options=numa_options,
        )

    def replace(self, local: int, handler: Any) -> None:
        """Watch another process in place of a rank's."""
        self._context.subprocess_handlers[local] = handler
        self._context._running_local_ranks.add(local)


def processes_of(agent: LocalElasticAgent) -> list[Any]:
    """Return the processes of an agent's ranks; empty before it has started any."""
    handlers = getattr(agent._pcontext, "subprocess_handlers", {})
    return [handler.proc for handler in handlers.values()]
