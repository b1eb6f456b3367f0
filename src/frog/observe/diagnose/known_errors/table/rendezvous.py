"""Known errors of starting a world: launchers, addresses, ports and the store."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "launcher-variables-missing",
        (
            "environment variable … expected, but not set",
            "KeyError: 'RANK'",
            "KeyError: 'LOCAL_RANK'",
            "KeyError: 'WORLD_SIZE'",
            "KeyError: 'MASTER_ADDR'",
            "KeyError: 'MASTER_PORT'",
            "KeyError: 'SLURM_",
        ),
        "A program for several ranks was started without the launcher that sets its variables, often with plain "
        "`python`.",
        "start it with `torchrun --nproc_per_node=N`, or with srun if a SLURM_ variable is missing; do not export RANK "
        "alone",
        section=16,
    ),
    KnownError(
        "process-group-missing",
        (
            "Default process group has not been initialized",
            "Default process group is not initialized",
            "please make sure to call init_process_group",
        ),
        "A collective ran before init_process_group, after destroy_process_group, or without a launcher.",
        "call init_process_group first, even in a world of one; or check dist.is_initialized()",
        section=17,
    ),
    KnownError(
        "process-group-twice",
        ("trying to initialize the default process group twice",),
        "init_process_group was called twice in one process, for example by the program and by its library.",
        "call it once, or only if dist.is_initialized() is false",
    ),
    KnownError(
        "port-in-use",
        ("address already in use", "EADDRINUSE", "only one usage of each socket address"),
        "Another process uses the port: often a second job on the machine, or a rank that is left of the last run.",
        "choose another port (--rdzv-endpoint=127.0.0.1:0, --master_port, a port from the job's number), or end the "
        "processes that are left",
        section=18,
    ),
    KnownError(
        "local-rank-argument",
        (
            "unrecognized arguments: … --local-rank",
            "unrecognized arguments: --local-rank",
            "unrecognized arguments: … --local_rank",
            "unrecognized arguments: --local_rank",
            "the following arguments are required: --local_rank",
            "has no attribute 'local_rank'",
        ),
        "The launcher and the program do not agree on how the local rank is passed: torch.distributed.launch adds "
        "--local-rank (before torch 2.0 --local_rank), torchrun sets LOCAL_RANK.",
        "start with torchrun and read the variable LOCAL_RANK",
    ),
    KnownError(
        "unknown-option",
        (
            "error: unrecognized arguments: ",
            "error: the following arguments are required",
            "error: argument … invalid choice",
            "error: argument … expected one argument",
            "Some specified arguments are not used by the HfArgumentParser",
        ),
        "The command line has an option that the program does not know, or lacks one that it needs.",
        "compare the command with the program's --help; check quotes and line ends with a backslash",
    ),
    KnownError(
        "host-name-unknown",
        (
            "gai error",
            "Name or service not known",
            "Temporary failure in name resolution",
            "nodename nor servname provided",
            "No address associated with hostname",
            "Could not resolve hostname",
            "getaddrinfo failed",
        ),
        "A host name does not resolve to an address.",
        "use an address for MASTER_ADDR, check the variable's value, or add the name to /etc/hosts",
        section=21,
        alone=Level.HINT,
    ),
    KnownError(
        "clients-missing",
        (
            "seconds waiting for clients",
            "Wait timeout after … for key",
            "Timed out waiting for clients",
        ),
        "Rank 0 listens, but fewer ranks than the world's size connected in time.",
        "count nodes x ranks; look for the node whose task ended at once or cannot reach MASTER_ADDR",
        section=20,
        yields=True,
    ),
    KnownError(
        "master-unreachable",
        (
            "The client socket has timed out after",
            "client socket has failed to connect to any network address",
            "The connection to the C10d store has failed",
            "connect() timed out",
            "connect [127.0.1.1]",
            "Gloo connectFullMesh failed",
            "TCP client failed to connect/validate to host",
            "Failed to connect to … after … attempts",
            "No route to host",
        ),
        "No process answers at MASTER_ADDR:MASTER_PORT: rank 0 was not started or ended, is on another node, or is "
        "behind a firewall. With gloo also: a rank's own name resolves to an address that other nodes cannot reach.",
        "check that MASTER_ADDR is the node of rank 0; from another node, run `nc -vz $MASTER_ADDR $MASTER_PORT`; "
        "with gloo, set GLOO_SOCKET_IFNAME",
        section=19,
        yields=True,
    ),
    KnownError(
        "gloo-cannot-connect",
        ("gloo/transport/tcp/… Connect timeout", "gloo/transport/tcp/… connect [… Connection refused"),
        "gloo could not connect to another rank: its name resolves to an address of another network, it has already "
        "died, or it does not take part in the group.",
        "set GLOO_SOCKET_IFNAME to the interface that connects the nodes; look for an earlier error of another rank; "
        "call new_group on all ranks with the same list",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "store-connection-lost",
        (
            "recvValue failed",
            "failed to recv, got 0 bytes",
            "sendBytes failed",
            "recvVector failed",
            "but store->get('… got error: Connection reset",
            "but store->get('… got error: Broken pipe",
            "Broken pipe",
            "has failed to send a keep-alive heartbeat",
            "failed to shutdown the rendezvous",
            'Failed to check the "should dump" flag on TCPStore',
        ),
        "The process at the other end, usually that with the store (rank 0, or the agent of the first node), has "
        "ended.",
        "look at the log of rank 0 and of the first node",
        level=Level.CONSEQUENCE,
        section=27,
    ),
    KnownError(
        "rendezvous-timeout",
        ("RendezvousTimeoutError", "RendezvousConnectionError", "RendezvousStateError"),
        "Fewer nodes than --nnodes joined the rendezvous in time, or the node that hosts it is unreachable.",
        "start torchrun on every node with the same --rdzv-endpoint, --rdzv-id and --nnodes; check the port with nc",
        section=19,
        yields=True,
    ),
    KnownError(
        "rendezvous-closed",
        ("RendezvousClosedError", "RendezvousGracefulExitError"),
        "The rendezvous had already ended: another node's ranks failed, or this node came too late.",
        "look at the first node that failed; use a new --rdzv-id for each run",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "store-timeout",
        (
            "Socket Timeout",
            "wait timeout after … keys: ",
            "Timeout waiting for key",
            "store->get('… got error",
            "The TCPStore server … timed out",
            "Timed out after … waiting for key",
        ),
        "A rank waited for another rank's entry in the store until it gave up: the other rank was late, stuck or "
        "dead, often before the first collective.",
        "look at the rank that did not come: a slow download or load on one rank, or an error in its log; raise the "
        "timeout of init_process_group if it is only slow",
        level=Level.SYMPTOM,
        sure=False,
        section=19,
    ),
    KnownError(
        "client-socket-retries",
        (
            "The client socket has failed to connect to",
            "The server socket cannot be initialized on",
            "The server socket has failed to listen on",
        ),
        "A rank could not connect or listen at its first try; this is normal before the store listens, and on "
        "machines without IPv6.",
        "if nothing follows, check MASTER_ADDR and MASTER_PORT",
        level=Level.HINT,
        sure=False,
        section=19,
    ),
    KnownError(
        "ssh-failed",
        (
            "Permission denied (publickey",
            "Host key verification failed",
            "ssh: connect to host",
            "ssh exited with exit code 255",
        ),
        "The launcher could not log in to another node with ssh.",
        "set up keys without a password and known hosts, and try `ssh NODE hostname` from the first node",
    ),
    KnownError(
        "spawn-without-main-guard",
        ("An attempt has been made to start a new process before the",),
        "A new process imports the file again, and the import starts more processes.",
        'put the code that starts them under `if __name__ == "__main__":`, or use num_workers=0',
        section=8,
    ),
    KnownError(
        "cannot-pickle",
        ("Can't pickle", "cannot pickle", "Can't get attribute"),
        "An object is saved or sent to another process, and cannot be pickled: a lambda, a local class, an open file.",
        "define functions and classes at the top of a module, or open files in the worker",
        alone=Level.ASIDE,
    ),
    KnownError(
        "peer-closed-connection",
        (
            "Connection closed by peer",
            "Connection reset by peer",
            "ConnectionResetError",
            "ConnectionRefusedError: [Errno 111]",
            "EOFError: \n",
        ),
        "The process at the other end of a connection has exited or does not listen.",
        "look for the error of the other rank, which came first",
        level=Level.CONSEQUENCE,
        section=27,
    ),
)
