"""Known errors of memory: the GPU's, the host's, and shared memory."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "mps-out-of-memory",
        ("MPS backend out of memory",),
        "A Mac's GPU shares the memory with all programs, and torch may use only a part of it, which is used up.",
        "use a smaller batch with more gradient accumulation",
        section=5,
    ),
    KnownError(
        "shared-memory-too-small",
        (
            "out of shared memory",
            "Error while creating shared memory segment",
            "unable to allocate shared memory",
            "unable to open shared memory object … No space left on device",
            "unable to write to file </torch_",
            "unable to resize file <filename not specified> to the right size",
            "is killed by signal: Bus error",
            "Unexpected bus error encountered in worker",
            "Call to posix_fallocate failed : No space left on device",
            "Bus error (core dumped)",
            "insufficient shared memory",
            "Increase the size of shared memory",
        ),
        "Shared memory (/dev/shm) is full: workers pass batches through it, and NCCL its buffers. A Docker container "
        "has only 64 MB by default.",
        "run the container with --shm-size=16g or --ipc=host; in Kubernetes, mount a volume in memory at /dev/shm; or "
        "use fewer DataLoader workers",
        section=14,
    ),
    KnownError(
        "too-many-open-files",
        (
            "Too many open files",
            "received 0 items of ancdata",
            "unable to open shared memory object … in read-write mode\n",
        ),
        "The process reached its limit of open files; DataLoader workers need one per shared tensor.",
        "raise the limit with `ulimit -n 65535`, or call torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    KnownError(
        "too-many-threads",
        (
            "can't start new thread",
            "Resource temporarily unavailable: 'fork'",
            "pthread_create failed",
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "Blas thread creation failed",
        ),
        "The limit of processes and threads of the user or container is reached.",
        "set OMP_NUM_THREADS=1, use fewer workers, and check `ulimit -u` and the container's pids limit",
    ),
    KnownError(
        "gpu-out-of-memory",
        (
            "CUDA out of memory",
            "torch.OutOfMemoryError",
            "torch.cuda.OutOfMemoryError",
            "CUDA error: out of memory",
            "CUDA driver error: out of memory",
            "CUDA failure…'out of memory'",
            "CUDA error … 'out of memory'",
            "cudaErrorMemoryAllocation",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_ALLOC_FAILED",
            "HIP out of memory",
            "NPU out of memory",
            "XPU out of memory",
            "No available memory for the cache blocks",
            "is less than desired GPU memory utilization",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "RESOURCE_EXHAUSTED: Out of memory",
            "GpuLaunchKernel … out of memory",
            "larger than the maximum number of tokens that can be stored in KV cache",
            "error=2 : out of memory",
            "cuda runtime error (2) : out of memory",
        ),
        "The GPU's free memory does not suffice. Weights, gradients and optimizer state have a fixed size; "
        "activations grow with the batch and the sequence. Another process on the same GPU counts too.",
        "use a smaller micro-batch with more gradient accumulation, then activation checkpointing, then a sharded "
        "strategy (ZeRO-3, FSDP); check with nvidia-smi that no other process uses the GPU, and that each rank uses "
        "its own",
        section=15,
    ),
    KnownError(
        "host-out-of-memory",
        (
            "oom_kill event",
            "oom-kill event",
            "OOMKilled",
            "Out of memory: Kill",
            "Memory cgroup out of memory",
            "task … Out Of Memory",
            "OUT_OF_MEMORY",
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
            "Cannot allocate memory",
            "MemoryError",
            "numpy.core._exceptions._ArrayMemoryError",
            "std::bad_alloc",
            "is killed by signal: Killed",
            "Exceeded job memory limit",
            "exceeded memory limit",
            "ray.exceptions.OutOfMemoryError",
            "killed due to the node running low on memory",
            "The node was low on resource: memory",
        ),
        "The host's memory (not the GPU's), or the job's share of it, is used up.",
        "request more memory (--mem, resources.limits.memory), use fewer ranks or DataLoader workers per node, and do "
        "not load the whole checkpoint or data set in every rank",
        section=28,
    ),
    KnownError(
        "out-of-memory",
        ("out of memory",),
        "Memory is used up; the message does not say whether the GPU's or the host's.",
        "watch nvidia-smi and `free -h` while it runs; use a smaller batch, and fewer workers",
        level=Level.SYMPTOM,
        sure=False,
        alone=Level.ASIDE,
    ),
    KnownError(
        "process-pool-died",
        (
            "A process in the process pool was terminated abruptly",
            "One of the subprocesses has abruptly died during map operation",
            "Some of the processes in the pool have died",
        ),
        "A worker process of a pool died, most often because the host ran out of memory.",
        "use fewer worker processes (num_proc), and look for oom-kill messages with `dmesg`",
        sure=False,
    ),
    KnownError(
        "dataloader-worker-died",
        (
            "DataLoader worker (pid…exited unexpectedly",
            "DataLoader worker (pid…is killed by signal",
            "Pin memory thread exited unexpectedly",
        ),
        "A DataLoader worker died without an exception of its own: killed for memory, a crash in native code, or an "
        "error printed earlier by the worker.",
        "set num_workers=0 to see the error in the main process; if it disappears, look for memory (host and /dev/shm)",
        level=Level.SYMPTOM,
        sure=False,
    ),
)
