"""Known errors of GPUs, their driver and their libraries."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "driver-too-old",
        (
            "The NVIDIA driver on your system is too old",
            "CUDA driver version is insufficient for CUDA runtime version",
            "was compiled with an unsupported toolchain",
            "API call is not supported in the installed CUDA driver",
            "forward compatibility was attempted on non supported HW",
        ),
        "torch, or a library next to it, was built for a newer CUDA than the GPU's driver supports.",
        "install torch's build for an older CUDA, or ask the site for a newer driver; `nvidia-smi` shows the driver's "
        "CUDA version",
        section=3,
        explains=("no-gpu", "cuda-initialization", "nccl-cuda-error"),
        alone=Level.HINT,
    ),
    KnownError(
        "driver-library-mismatch",
        ("Driver/library version mismatch",),
        "The NVIDIA driver was updated, but its kernel module is still the old one.",
        "reboot the node, or reload the kernel module; on a cluster, report the node",
    ),
    KnownError(
        "fabric-manager",
        ("system not yet initialized",),
        "The GPUs need NVIDIA's fabric manager (machines with NVSwitch), which is not running or has another version.",
        "start nvidia-fabricmanager in the driver's version; on a cluster, report the node",
        explains=("no-gpu", "cuda-initialization"),
    ),
    KnownError(
        "cuda-not-in-torch",
        ("Torch not compiled with CUDA enabled",),
        "The code requests `cuda`, but this build of torch has no CUDA.",
        "install torch's CUDA build on a GPU machine; elsewhere, use the device `cpu`",
        section=2,
    ),
    KnownError(
        "nccl-not-in-torch",
        ("Distributed package doesn't have NCCL",),
        "This build of torch has no NCCL: Windows, a Mac, or a CPU build.",
        "use the backend gloo, or install torch's CUDA build on Linux",
    ),
    KnownError(
        "no-gpu",
        (
            "no CUDA-capable device is detected",
            "No CUDA GPUs are available",
            "Found no NVIDIA driver on your system",
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found",
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        ),
        "The process sees no GPU: none was requested or passed to the container, the driver does not run, or "
        "CUDA_VISIBLE_DEVICES is empty or wrong.",
        "run nvidia-smi in the same job and container; request GPUs (--gres, --gpus, nvidia.com/gpu); print "
        "CUDA_VISIBLE_DEVICES",
        alone=Level.HINT,
    ),
    KnownError(
        "invalid-device-ordinal",
        (
            "invalid device ordinal",
            "But your machine only has: ",
            "the number of … GPUs specified (nproc_per_node=… is larger than",
            "Invalid device id",
        ),
        "A rank requests a GPU that it does not have: more ranks than visible GPUs, or the global rank used as the "
        "local one.",
        "set --nproc_per_node to the node's number of GPUs, use the GPU LOCAL_RANK, and check CUDA_VISIBLE_DEVICES",
        section=4,
    ),
    KnownError(
        "gpu-in-use",
        ("all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy or unavailable"),
        "The GPU is in exclusive mode and used by another process, or in a bad state.",
        "look for other processes with nvidia-smi; if there are none, report the node",
    ),
    KnownError(
        "no-kernel-image",
        (
            "no kernel image is available for execution on the device",
            "not compiled with … sm_",
            "invalid device function",
            "hipErrorNoBinaryForGpu: ",
        ),
        "This build of torch, or of an extension, has no code for this GPU's architecture.",
        "install a torch build that supports the GPU (torch.cuda.get_arch_list()), and rebuild extensions with "
        "TORCH_CUDA_ARCH_LIST",
    ),
    KnownError(
        "gpu-too-old",
        (
            "FlashAttention only supports Ampere GPUs or newer",
            "Bfloat16 is only supported on GPUs with compute capability",
            "Your setup doesn't support bf16/gpu",
            "bf16 is not supported on your device",
            "FP8 is only supported on devices with compute capability",
            "Expected is_sm … to be true, but got false",
        ),
        "The GPU does not support the requested number format or kernel, or the process sees no GPU.",
        "use fp16 instead of bf16, or another attention implementation, or a newer GPU",
    ),
    KnownError(
        "index-out-of-range",
        (
            "index out of range in self",
            "srcIndex < srcSelectDimSize",
            "index < sizes[i]",
            "ind >= 0 && ind < ind_dim_size",
            "idx_dim >= 0 && idx_dim < index_size",
            "vectorized_gather_kernel: Assertion",
            "Assertion `index out of bounds",
        ),
        "An index is outside the table it looks into: a token id that is not below the vocabulary's size, or a "
        "sequence longer than the position embeddings.",
        "compare the sizes of the tokenizer and the embedding (resize_token_embeddings), and the sequence's length "
        "with max_position_embeddings; on the CPU the error has a position",
        section=11,
    ),
    KnownError(
        "label-out-of-range",
        (
            "t >= 0 && t < n_classes",
            "cur_target >= 0 && cur_target < n_classes",
            "Target … is out of bounds",
            "input_val >= zero && input_val <= one",
            "all elements of input should be between 0 and 1",
        ),
        "A label is outside the range of classes, or a probability outside 0 to 1.",
        "check the labels against the number of classes (0 to C-1), and the ignore_index",
    ),
    KnownError(
        "device-side-assert",
        ("device-side assert triggered", "cudaErrorAssert"),
        "A check inside a GPU kernel failed, usually an index or a label out of range. The position is not exact, "
        "because kernels run later than their calls.",
        "run one step on the CPU or with CUDA_LAUNCH_BLOCKING=1; look for a line with `Assertion` above",
        section=11,
        sure=False,
    ),
    KnownError(
        "gpu-hardware",
        (
            "uncorrectable ECC error",
            "uncorrectable NVLink error",
            "fallen off the bus",
            "GPU is lost",
            "Unable to determine the device handle for GPU",
            "PCIe Bus Error",
            "NVRM: Xid",
            "hardware stack error",
        ),
        "The GPU or its link reports an error, usually of the hardware; an Xid of 13, 31 or 43 and a stack error can "
        "also come from a kernel.",
        "exclude the node (--exclude=NODE), restart from the last checkpoint, and report the node",
        sure=False,
    ),
    KnownError(
        "illegal-memory-access",
        (
            "illegal memory access was encountered",
            "CUDA error: misaligned address",
            "unspecified launch failure",
            "CUDA error: an illegal instruction was encountered",
            "invalid program counter",
        ),
        "A GPU kernel read or wrote outside its memory: a bug in a kernel or extension, sizes that do not fit it, or "
        "faulty hardware. The position is not exact, because kernels run later than their calls.",
        "repeat with CUDA_LAUNCH_BLOCKING=1 to get the line; suspect custom kernels and extensions first; if it is "
        "always the same node, the hardware",
        sure=False,
    ),
    KnownError(
        "cuda-in-forked-process",
        (
            "Cannot re-initialize CUDA in forked subprocess",
            "Lightning can't create new processes if CUDA is already",
            "CUDA has been initialized before the `notebook_launcher`",
        ),
        "CUDA was used before processes were forked.",
        "use the start method `spawn`, or touch CUDA only after the fork",
    ),
    KnownError(
        "cublas-failed",
        (
            "CUBLAS_STATUS_NOT_INITIALIZED",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INVALID_VALUE",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUBLAS_STATUS_NOT_SUPPORTED",
        ),
        "A matrix product on the GPU failed: no memory left for cuBLAS, an earlier index error, or two versions of the "
        "CUDA libraries in one process.",
        "try a smaller batch; run one step on the CPU; unset LD_LIBRARY_PATH",
        sure=False,
    ),
    KnownError(
        "cudnn-failed",
        ("CUDNN_STATUS_", "cuDNN version incompatibility", "Could not load library libcudnn", "cuDNN error:"),
        "cuDNN failed: no memory left, or another version of cuDNN on LD_LIBRARY_PATH than torch's own.",
        "try a smaller batch; unset LD_LIBRARY_PATH",
        sure=False,
        alone=Level.HINT,
    ),
    KnownError(
        "extension-not-built",
        (
            "CUDA_HOME environment variable is not set",
            "CUDA_HOME does not exist",
            "Error building extension",
            "ninja: build stopped",
            "Ninja is required to load C++ extensions",
            "has no attribute 'ds_opt_adam'",
            "mismatches the version that was used to compile",
            "Unable to JIT load the",
            "CUDAMismatchException",
            ".h: No such file or directory",
            "Command '['ninja', … returned non-zero",
        ),
        "A C++ or CUDA extension could not be built: compiler, ninja or CUDA toolkit are missing or do not fit torch.",
        "load a compiler and the CUDA toolkit of torch's version (torch.version.cuda), set CUDA_HOME, delete "
        "~/.cache/torch_extensions, and build once before the job",
    ),
    KnownError(
        "cuda-toolkit-differs",
        ("does not match the version torch was compiled with",),
        "The installed CUDA toolkit and torch's CUDA have different versions, so that extensions may not be built.",
        "load the toolkit of torch.version.cuda",
        alone=Level.HINT,
    ),
    KnownError(
        "cuda-setup-bitsandbytes",
        (
            "CUDA Setup failed despite GPU being available",
            "libbitsandbytes_cpu.so: undefined symbol",
            "Could not find the bitsandbytes CUDA binary",
            "has no attribute 'cquantize_blockwise_fp16_nf4'",
            "has no attribute 'cget_managed_ptr'",
        ),
        "bitsandbytes did not find the CUDA libraries and fell back to its CPU build.",
        "install a bitsandbytes that fits torch's CUDA, and put libcudart on LD_LIBRARY_PATH",
    ),
    KnownError(
        "library-conflict",
        (
            "undefined symbol: nccl",
            "undefined symbol: _ZN",
            "undefined symbol",
            "GLIBCXX_… not found",
            "GLIBC_… not found",
            "cannot open shared object file",
            "DLL load failed",
        ),
        "A compiled library is missing or does not fit the others: it was built for another version of torch, CUDA or "
        "libc.",
        "reinstall the named package for this version of torch in a fresh environment, and unset LD_LIBRARY_PATH",
        alone=Level.ASIDE,
    ),
    KnownError(
        "triton-out-of-resource",
        ("OutOfResources: out of resource: shared memory", "out of resource: shared memory, Required"),
        "A Triton kernel needs more shared memory of the GPU's cores than this GPU has.",
        "use smaller blocks or fewer stages, or switch the fused kernel off",
    ),
    KnownError(
        "cuda-initialization",
        (
            "CUDA error: initialization error",
            "CUDA unknown error - this may be due to an incorrectly set up",
            "CUDA error: unknown error",
            "CUDA failure…'initialization error'",
        ),
        "CUDA did not start in this process: a fork after its first use, a driver in a bad state, or wrong "
        "CUDA_VISIBLE_DEVICES.",
        "run nvidia-smi and a one-line torch program on the node; use the start method `spawn`",
        sure=False,
    ),
    KnownError(
        "peer-access",
        ("peer access is not supported between these two devices", "peer mapping resources exhausted"),
        "The GPUs cannot read each other's memory directly.",
        "set NCCL_P2P_DISABLE=1",
        sure=False,
    ),
    KnownError(
        "consumer-gpu-p2p",
        ("doesn't support faster communication broadband via P2P or IB",),
        "These consumer GPUs have no peer-to-peer communication, and accelerate asks to say so.",
        "set NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1, or start with `accelerate launch`, which sets them",
        alone=Level.HINT,
    ),
)
