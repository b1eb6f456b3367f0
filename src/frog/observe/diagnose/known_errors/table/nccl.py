"""Known errors of NCCL and gloo: their networks, and their collectives."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

NETWORK = (
    KnownError(
        "duplicate-gpu",
        ("Duplicate GPU detected",),
        "Two ranks use one GPU: set_device is missing, more ranks than GPUs, or every task sees the same GPU.",
        "call torch.cuda.set_device(LOCAL_RANK) before init_process_group, and start one rank per GPU",
        section=23,
    ),
    KnownError(
        "no-network-interface",
        (
            "no socket interface found",
            "Unable to find interface for: ",
            "unable to find address for interface",
            "Unable to find address for: ",
            "Socket creation failed : Address family not supported",
        ),
        "This machine has no network interface (or no address) with the requested name: NCCL_SOCKET_IFNAME or "
        "GLOO_SOCKET_IFNAME was copied from another machine, or the host's name does not resolve.",
        "unset NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, or choose an interface that `ip addr` lists on every node",
        section=22,
    ),
    KnownError(
        "nccl-version-mismatch",
        ("NCCL version mismatch", "Mismatched NCCL version", "mismatched NCCL versions", "expected NCCL version"),
        "Ranks, or libraries of one rank, use different versions of NCCL.",
        "install the same torch on all nodes; remove other copies of NCCL from LD_LIBRARY_PATH",
    ),
    KnownError(
        "infiniband-failed",
        (
            "Got completion … with error",
            "Got completion … with status=",
            "async fatal event",
            "Got async event : local",
            "ibv_modify_qp failed",
            "ibv_create_qp failed",
            "ibv_reg_mr failed",
            "ibv_reg_mr_iova2 failed",
            "ibv_create_cq failed",
            "ibv_poll_cq failed",
            "No active IB device found",
        ),
        "InfiniBand or RoCE failed between two nodes: a port that is down, a wrong adapter or GID, a limit of locked "
        "memory, or a peer that died.",
        "check `ibstat` and `ulimit -l` (best unlimited) on the named nodes; choose adapters with NCCL_IB_HCA and "
        "NCCL_IB_GID_INDEX; NCCL_IB_DISABLE=1 shows whether it works over TCP",
        sure=False,
        yields=True,
    ),
    KnownError(
        "infiniband-event",
        ("Got async event",),
        "The driver of a network adapter reports an event, such as a port that went down or a new address table; many "
        "are harmless.",
        "check `ibstat` on the named node; compare the time with that of the failure",
        level=Level.HINT,
        sure=False,
        explains=("infiniband-failed",),
    ),
    KnownError(
        "nvls-failed",
        ("NVLink SHARP (NVLS)", "nvls.cc:… NCCL WARN Cuda failure", "nvls.cc … Cuda failure"),
        "NCCL could not set up NVLink SHARP multicast.",
        "set NCCL_NVLS_ENABLE=0; check that the fabric manager runs",
        sure=False,
    ),
    KnownError(
        "nccl-cannot-connect",
        (
            "socketStartConnect: Connect to",
            "Call to connect returned Connection refused",
            "Call to connect returned No route to host",
            "Call to connect returned Connection timed out",
            "Call to connect to … failed : ",
            "Call to connect failed : ",
            "connect to … failed : Software caused connection abort",
            "socketPollConnect: Connect to",
            "socketPollConnect … returned … No route to host",
            "socketPollConnect … returned … Connection refused",
            "socketFinalizeConnect",
            "Connect to … returned … errno",
        ),
        "NCCL could not connect to another rank: the wrong network interface (docker0, a VPN), a firewall between the "
        "nodes, or a rank that has already died.",
        "set NCCL_SOCKET_IFNAME to the interface that connects the nodes; open the ports between them; "
        "NCCL_DEBUG=INFO shows the addresses",
        section=22,
        sure=False,
        yields=True,
    ),
)
"""Specific enough to come before the words of the system, such as "Cannot allocate memory", in the same line."""

ERRORS = (
    KnownError(
        "nccl-invalid-usage",
        (
            "ncclInvalidUsage",
            "ncclInvalidArgument",
            "NCCL … invalid usage",
            "NCCL error…invalid argument",
            "NCCL failure…invalid argument",
            "nccl… failed: invalid argument",
        ),
        "NCCL was called wrongly: often two ranks on one GPU, tensors of different types, or sizes that differ.",
        "check that each rank uses its own GPU (LOCAL_RANK); run with NCCL_DEBUG=WARN, which prints the reason",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "collective-mismatch",
        (
            "Detected mismatch between collectives on ranks",
            "Mismatch between collective operation types",
            "Mismatched collective detected",
            "collective operation type mismatch",
            "gradients are inconsistent between workers",
        ),
        "Two ranks called different collectives, or the same one with different sizes; in fairseq: their gradients "
        "differ.",
        "let all ranks make the same calls in the same order, even a rank that has nothing to contribute",
        section=25,
    ),
    KnownError(
        "collective-size-mismatch",
        ("op.preamble.length <= op.nbytes", "Message truncated: received", "Received data size doesn't match expected"),
        "The tensors of two ranks have different sizes in one collective, or the ranks are in different collectives.",
        "let all ranks make the same calls with the same sizes; look for a collective under `if rank == …`",
        section=26,
    ),
    KnownError(
        "collective-arguments",
        (
            "Tensors must be contiguous",
            "Invalid scalar type",
            "Input tensor data type is not supported for NCCL",
            "must be equal to world_size times input tensor size",
            "must match number of collective participants",
            "Cannot use ReduceOp",
        ),
        "A collective does not accept this tensor: its layout, type or size.",
        "use .contiguous(), a type that the backend knows (not int16), and the sizes that the collective requires",
    ),
    KnownError(
        "no-backend-for-device",
        (
            "No backend type associated with device type",
            "Tensors must be CUDA and dense",
            "ProcessGroupNCCL does not support",
        ),
        "A collective ran on a tensor of a device (often the CPU) for which the group has no backend.",
        "move the tensor to the rank's GPU, or create the group with `cpu:gloo,cuda:nccl`",
        section=7,
    ),
    KnownError(
        "unknown-backend-for-accelerator",
        ("don't know which communication backend to use for this accelerator",),
        "torch found an accelerator (on a Mac: MPS) that has no communication backend.",
        "run several ranks on the CPU with gloo, or one process on the accelerator",
        section=6,
    ),
    KnownError(
        "rank-missed-barrier",
        ("failed to pass monitoredBarrier", "successfully reached monitoredBarrier, but received errors"),
        "The named rank did not reach the barrier in time: it is slow, stuck in another place, or dead.",
        "look at that rank's log and stack (py-spy dump)",
        level=Level.SYMPTOM,
        section=24,
    ),
    KnownError(
        "collective-timeout",
        (
            "Watchdog caught collective operation timeout",
            "milliseconds before timing out",
            "timed out in blocking wait",
            "Timed out waiting …ms for … operation to complete",
            "Timeout at NCCL work",
            "Application timeout caused pair closure",
            "collective operation timeout",
            "dump signal due to a collective timeout from this local rank",
        ),
        "Ranks waited in a collective that another rank did not enter or finish: it skipped it, is slow or stuck, or "
        "died.",
        "look at the rank that is behind or absent here: its log, its stack (py-spy dump); look for a collective under "
        "`if rank == …`, uneven batches, a slow save or download on one rank. A longer timeout helps only if a rank "
        "is slow",
        level=Level.SYMPTOM,
        sure=False,
        section=24,
    ),
    KnownError(
        "watchdog-stuck",
        (
            "ProcessGroupNCCL's watchdog got stuck",
            "Heartbeat monitor timed out",
            "FlightRecorder … timed out",
            "Could not acquire GIL within",
        ),
        "NCCL's watchdog thread made no progress: the process hangs in CUDA or NCCL, or holds Python's lock.",
        "look at the stacks with py-spy dump --native; on the first error of another rank if there is one",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "nccl-remote-exited",
        (
            "remote process exited or there was a network error",
            "ncclRemoteError",
            "Connection closed by remote peer",
            "NCCL communicator was aborted",
            "Some NCCL operations have failed or timed out",
            "To avoid data inconsistency, we are taking the entire process down",
            "Received a dump signal due to a collective timeout from",
            "Received a timeout signal from this local rank",
            "First PG on this rank that detected no heartbeat",
            "Exception (either an error or timeout) detected by watchdog",
            "Process group watchdog thread terminated with exception",
            "NCCL watchdog thread terminated with exception",
        ),
        "Another rank exited, or an operation failed or timed out earlier, and this rank noticed.",
        "look for the error or timeout that came first, often on another rank",
        level=Level.CONSEQUENCE,
        section=27,
    ),
    KnownError(
        "nccl-cuda-error",
        ("unhandled cuda error", "ncclUnhandledCudaError"),
        "A CUDA call inside NCCL failed: no GPU memory left, a GPU that another process uses, a driver that does not "
        "fit, or an earlier error of this rank.",
        "run with NCCL_DEBUG=INFO: the line with `NCCL WARN Cuda failure` names the reason",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "nccl-system-error",
        ("unhandled system error", "ncclSystemError", "external library call failed"),
        "A system call inside NCCL failed: most often the network (wrong interface, firewall), full shared memory, or "
        "a peer that died.",
        "run with NCCL_DEBUG=INFO: the line with `NCCL WARN` names the reason; check NCCL_SOCKET_IFNAME and /dev/shm",
        level=Level.SYMPTOM,
        sure=False,
        section=22,
    ),
    KnownError(
        "nccl-internal-error",
        ("ncclInternalError", "NCCL … internal error", "Internal check failed"),
        "NCCL failed internally: a bug of NCCL, memory that was overwritten, or a topology that it does not know.",
        "run with NCCL_DEBUG=INFO: the line with `NCCL WARN` names the reason; try another version of NCCL",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "nccl-error",
        ("NCCL error in:", "NCCL Error … in:", "NCCL error: ", "NCCL failure "),
        "NCCL failed, and the log does not say why.",
        "look for an earlier line with `NCCL WARN` or a time-out; run with NCCL_DEBUG=WARN",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "barrier-without-device",
        (
            "devices used by this process are currently unknown",
            "device used by this process is currently unknown",
            "to perform barrier as devices",
        ),
        "A barrier ran before torch knew the rank's GPU, so it guessed one; if the guess is wrong, the barrier can "
        "hang.",
        "pass device_id to init_process_group, or device_ids=[local_rank] to the barrier",
        level=Level.ASIDE,
        sure=False,
    ),
)
