"""Open MPI's collectives on float32, called directly in its library, so that five functions need no extra package.

Its ranks find each other only through `mpirun`, which therefore starts the measured world: see `mpirun`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from frog.core.errors import UsageError
from frog.measure.peers.buffers import Array

_LIBRARY = "libmpi.40.dylib" if sys.platform == "darwin" else "libmpi.so.40"
"""The library of Open MPI 4 and 5. MPICH's has another number, and other values for the same names."""
_IN_PLACE = ctypes.c_void_p(1)
_HINT = "make system, or: apt install openmpi-bin; or omit mpi from --against"


def mpirun(num_ranks: int, command: Sequence[str]) -> list[str]:
    """Return the command that starts `command` on `num_ranks` ranks here. Raises UsageError without Open MPI."""
    program = shutil.which("mpirun.openmpi") or shutil.which("mpirun")  # Debian can have several
    if program is None:
        raise UsageError("--against mpi: mpirun not found", _HINT)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    if "Open MPI" not in said and "OpenRTE" not in said:  # the name depends on the one by which it was called
        raise UsageError(f"--against mpi: {program} does not belong to Open MPI: {said.splitlines()[:1]}", _HINT)
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UsageError(f"--against mpi: Open MPI's library cannot be loaded: {error}", _HINT) from None
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return [program, *as_root, "--oversubscribe", "--bind-to", "none", "-n", str(num_ranks), *command]


class OpenMPI:
    """The ranks that `mpirun` started, seen from one of them."""

    def __init__(self) -> None:
        self._mpi = ctypes.CDLL(_LIBRARY, mode=ctypes.RTLD_GLOBAL)  # its plugins need its symbols
        self._mpi.MPI_Init(None, None)
        self._world, self._float, self._sum = (
            ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._mpi, name)))
            for name in ("ompi_mpi_comm_world", "ompi_mpi_float", "ompi_mpi_op_sum")
        )

    def call(self, operation: str, whole: Array, part: Array, other: Array) -> Callable[[], object]:
        """Return a collective on float32 buffers: `whole` and `other` have as many elements as all ranks' `part`."""
        mpi, world, kind, every, each = self._mpi, self._world, self._float, len(whole), len(part)
        a, b, c = (x.ctypes.data_as(ctypes.c_void_p) for x in (whole, part, other))  # they keep the arrays alive
        if operation == "all_reduce":
            return lambda: mpi.MPI_Allreduce(_IN_PLACE, a, every, kind, self._sum, world)
        if operation == "broadcast":
            return lambda: mpi.MPI_Bcast(a, every, kind, 0, world)
        if operation == "all_gather":
            return lambda: mpi.MPI_Allgather(b, each, kind, a, each, kind, world)
        if operation == "reduce_scatter":
            return lambda: mpi.MPI_Reduce_scatter_block(a, b, each, kind, self._sum, world)
        return lambda: mpi.MPI_Alltoall(a, each, kind, c, each, kind, world)

    def close(self) -> None:
        self._mpi.MPI_Finalize()
