"""Known errors of DeepSpeed, accelerate, Lightning, FSDP, Megatron, Ray and their configuration."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "deepspeed-batch-size",
        ("Check batch related parameters",),
        "DeepSpeed requires train_batch_size = micro batch x accumulation x world, and often sees a world of 1.",
        "set two of the three and omit the third; use a launcher",
        section=33,
    ),
    KnownError(
        "deepspeed-configuration",
        (
            "Please correct the following DeepSpeed config values that mismatch",
            "validation error for DeepSpeed",
            "validation errors for DeepSpeed",
            "DeepSpeedConfigError",
            "Expected a string path to an existing deepspeed config",
            "can't be used together with DeepSpeed",
            "DeepSpeed Zero-3 is not compatible with",
            "when using DeepSpeed `load_checkpoint` … `auto`",
            "zero_quantized_weights … not",
        ),
        "The DeepSpeed configuration contradicts itself, the program's arguments or the installed version.",
        'compare the named keys; write "auto" for values that the Trainer also sets',
    ),
    KnownError(
        "deepspeed-reduced-twice",
        ("has already been reduced", "Gradient computed twice for this partition"),
        "A parameter got its gradient twice in one backward pass: reentrant activation checkpointing, or a module that "
        "is used twice.",
        "use use_reentrant=False, or ZeRO stage 1; call backward once per forward",
    ),
    KnownError(
        "zero3-parameters-in-flight",
        (
            "inflight params",
            "param status is … INFLIGHT",
            "assert param.ds_status == ZeroParamStatus",
            "ZeroParamStatus.NOT_AVAILABLE",
            "ZeroParamStatus.INFLIGHT",
            "tracing error at step",
        ),
        "Under ZeRO-3 the ranks, or two steps, used the modules in different orders: a branch on the data or on the "
        "rank, or an evaluation in the middle of a step.",
        "let every rank run the same modules in each step; for mixtures of experts, use set_z3_leaf_modules",
        sure=False,
    ),
    KnownError(
        "sharded-weight-used-whole",
        (
            "'weight' must be 2-D",
            "weight should have at least three dimensions",
            "size mismatch, got input … vec (0)",
            "shape in current model is torch.Size([0])",
            "mat2 must be a matrix, got 1-D tensor",
            "Expected 2-D weight",
        ),
        "A weight was used while this rank had only its shard of it (ZeRO-3, FSDP): outside the wrapped module's "
        "forward.",
        "call the wrapped model itself, not an inner module; gather the weight first (GatheredParameters, "
        "summon_full_params)",
    ),
    KnownError(
        "fsdp-uniform-dtype",
        (
            "Must flatten tensors with uniform dtype",
            "FlatParameter requires uniform dtype",
            "`FlatParameter` requires uniform",
            "expects uniform original parameter dtype",
            "FlatParameter requires uniform requires_grad",
            "Cannot flatten integer dtype tensors",
            "Must flatten tensors with uniform `requires_grad`",
            "Must flatten tensors with the same dtype",
        ),
        "One FSDP unit has parameters of several types, or frozen and trained ones together.",
        "convert the model to one type before wrapping; for frozen and trained parameters, use use_orig_params=True, "
        "or wrap adapters separately",
    ),
    KnownError(
        "fsdp-parameters-on-cpu",
        (
            "FSDP-managed module unexpectedly has parameters on",
            "Expects tensor to be on the compute device",
            "FSDP-managed module with parameter CPU offloading enabled has parameters on",
        ),
        "A module is on another device than FSDP expects.",
        "pass device_id to FSDP, and move the model before the forward pass",
    ),
    KnownError(
        "horovod-stall",
        (
            "were submitted to be reduced, gathered or broadcasted by subset of ranks",
            "Stalled ranks:",
            "HorovodInternalError",
        ),
        "Some ranks entered a collective of Horovod that others did not enter.",
        "the message names the stalled ranks and tensors; look for a branch on the rank, uneven batches, a dead rank",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "horovod-shut-down",
        ("Horovod has been shut down",),
        "Horovod ended because a rank failed or left before the others.",
        "look for the first exception in the logs of all ranks (mpirun --tag-output)",
        level=Level.CONSEQUENCE,
    ),
    KnownError(
        "jax-coordination",
        ("DEADLINE_EXCEEDED: Barrier timed out", "The tasks have crashed. Check the task logs"),
        "A process of the JAX job died or did not reach a barrier in time.",
        "look at the log of the task that the message names",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "mixed-tensor-and-dtensor",
        ("got mixed torch.Tensor and DTensor",),
        "An operation received a plain tensor and a distributed one.",
        "convert the plain tensor with distribute_tensor, or the other with .full_tensor(); all parameters of an "
        "operation must be sharded by the same call",
    ),
    KnownError(
        "device-map-in-training",
        (
            "You can't train a model that has been loaded in 8-bit precision on a different device",
            "You can't train a model that has been loaded with `device_map='auto'` in any distributed mode",
            "can't train a model that has been loaded in 8-bit precision with `device_map",
            "can't train a model that has been loaded in 8-bit or 4-bit precision on a different device",
        ),
        "Each rank loaded the model onto all GPUs (device_map='auto'), or onto another GPU than its own.",
        'use device_map={"": local_rank}',
    ),
    KnownError(
        "world-not-divisible",
        (
            "is not divisible by tensor",
            "must be divisible by tensor",
            "should be divisible by pipeline",
            "is not divisible by infer_tp",
            "only support equal chunk. Got size of DataProto",
            "is not divisible by micro batch size",
            "is not divisible by micro-batch-size",
            "world size … is not divisible by",
            "world_size … is not divisible by",
            "world size … must be divisible by",
            "number of GPUs should be divisible by",
            "must be divisible by `num_key_value_heads`",
            "not divisible by the world size",
            "parallel dims: dp_replicate",
            "Invalid parallel dims",
            "is not divisible by tp_size",
            "divisible by tensor model parallel size",
            "must be divisible by the number of",
        ),
        "The numbers of ranks, heads or samples do not fit the requested parallel layout.",
        "tensor x pipeline x context x data ranks must be the world's size, heads must divide by the tensor ranks, and "
        "the global batch by micro batch x data ranks",
    ),
    KnownError(
        "lightning-slurm-tasks",
        (
            "does not match the number of tasks per node configured in SLURM",
            "the number of tasks per node configured in SLURM",
            "does not match the number of nodes configured in SLURM",
            "You set `--ntasks",
        ),
        "Lightning's devices or num_nodes differ from the Slurm job's tasks.",
        "set --ntasks-per-node to devices and --nodes to num_nodes, and start with srun",
    ),
    KnownError(
        "lightning-configuration",
        ("MisconfigurationException",),
        "Lightning rejects the Trainer's arguments, or what the module defines.",
        "the message names it",
    ),
    KnownError(
        "lightning-deadlock-detected",
        ("DeadlockDetectedException", "DeadLock detected from rank"),
        "One rank failed, and Lightning ended the others.",
        "look for the other rank's exception",
        level=Level.CONSEQUENCE,
    ),
    KnownError(
        "accelerate-configuration",
        (
            "You can't use same `Accelerator()` instance with multiple models",
            "You are trying to offload the whole model to the disk",
            "AcceleratorState has already been initialized",
            "AcceleratorState` object has no attribute",
        ),
        "The program uses accelerate in a way that its configuration does not allow.",
        "the message often names the argument",
    ),
    KnownError(
        "ray-worker-died",
        (
            "ActorDiedError",
            "The actor died unexpectedly",
            "WorkerCrashedError",
            "RayActorError",
            "The actor is dead because",
            "A worker died or was killed while executing a task",
            "Owner's node has crashed",
            "The node was terminated",
        ),
        "A Ray worker process died; the reason is in its own log, often the host's memory.",
        "look at the worker's .err and .out files under /tmp/ray/session_latest/logs, and at `dmesg`",
        level=Level.SYMPTOM,
        sure=False,
    ),
    KnownError(
        "engine-core-failed",
        (
            "Engine core initialization failed",
            "EngineDeadError",
            "Engine process failed to start",
            "WorkerProc initialization failed",
        ),
        "A process of the inference engine failed, often at its start.",
        "look for its exception above",
        level=Level.CONSEQUENCE,
    ),
    KnownError(
        "tokenizers-fork",
        ("The current process just got forked, after parallelism has already been used",),
        "A process was forked after the tokenizer had used threads; the tokenizer then switches its threads off. It "
        "is a warning, but such a fork can also hang.",
        "set TOKENIZERS_PARALLELISM=false",
        level=Level.HINT,
        sure=False,
    ),
    KnownError(
        "wandb-login",
        (
            "api_key not configured (no-tty)",
            "wandb: ERROR api_key not configured",
            "wandb.errors.CommError",
            "wandb.errors.errors.CommError",
            "wandb.errors.AuthenticationError",
        ),
        "Weights & Biases cannot log in or reach its server from this node.",
        "set WANDB_API_KEY, or WANDB_MODE=offline on compute nodes",
        alone=Level.HINT,
    ),
)
