"""Known errors of models, batches, DDP and number formats."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "ddp-unused-parameters",
        (
            "Expected to have finished reduction in the prior iteration",
            "It looks like your LightningModule has parameters that were not used in producing the loss",
        ),
        "DDP waits for the gradient of a parameter that the loss did not use.",
        "remove the unused module, or set find_unused_parameters=True; TORCH_DISTRIBUTED_DEBUG=INFO names the "
        "parameters",
        section=29,
    ),
    KnownError(
        "ddp-ready-twice",
        ("Expected to mark a variable ready only once", "ready for reduction twice"),
        "A parameter got its gradient twice in one backward pass: reentrant activation checkpointing, or a module "
        "that is used twice.",
        "use use_reentrant=False for checkpointing, or _set_static_graph(); drop find_unused_parameters",
        section=29,
    ),
    KnownError(
        "ddp-different-models",
        (
            "DDP expects same model across all ranks",
            "appears not to match sizes of the same param in process 0",
            "appears not to match strides of the same param",
        ),
        "The ranks built different models: another configuration, or a vocabulary that grew on one rank. "
        '"inconsistent 0 params" usually means that nothing came from a rank: it died, never started, or was still '
        "busy at the timeout.",
        "build the model from one file on all ranks; look for an earlier error of another rank",
        section=30,
        yields=True,
    ),
    KnownError(
        "ddp-device-ids",
        ("device_ids and output_device arguments only work with", "all tensors must be on devices["),
        "DDP received device_ids, but the model is on the CPU or on several devices.",
        "move the model to the rank's GPU before wrapping it, or leave device_ids out",
    ),
    KnownError(
        "uneven-inputs",
        ("Detected at least one rank that exhausted inputs",),
        "The ranks have different numbers of batches.",
        "use a DistributedSampler with drop_last or padding, or the Join context",
    ),
    KnownError(
        "ddp-nothing-to-train",
        (
            "module doesn't have any parameters that require a gradient",
            "module doesn't have any parameter that requires a gradient",
            "element 0 of tensors does not require grad",
            "does not require grad and does not have a grad_fn",
        ),
        "No trained parameter takes part in the loss: all are frozen, or the graph was cut (no_grad, detach, reentrant "
        "checkpointing of frozen inputs).",
        "check requires_grad; with checkpointing of a frozen model, call enable_input_require_grads()",
    ),
    KnownError(
        "modified-in-place",
        ("has been modified by an inplace operation", "is a view and is being modified inplace"),
        "A tensor that the backward pass needs was changed in place; with DDP, often by a second forward pass before "
        "the backward pass (buffers are broadcast).",
        "avoid the in-place operation, or set broadcast_buffers=False; torch.autograd.set_detect_anomaly(True) shows "
        "the operation whose gradient failed",
    ),
    KnownError(
        "backward-twice",
        ("Trying to backward through the graph a second time",),
        "Something from the previous step is part of this step's loss: an accumulated loss, a hidden state.",
        "use .item() for numbers that you keep and .detach() for tensors",
        section=13,
    ),
    KnownError(
        "recomputed-differently",
        (
            "Recomputed values for the following tensors have different metadata",
            "A different number of tensors was saved during the original forward and recomputation",
        ),
        "Activation checkpointing repeated the forward pass and got other tensors: a branch, autocast, or a sharded "
        "weight that differs between the two passes.",
        "make the checkpointed function deterministic; try use_reentrant=True, or checkpoint outside of FSDP's unit",
    ),
    KnownError(
        "different-devices",
        (
            "Expected all tensors to be on the same device",
            "module must have its parameters and buffers on device",
            "same device, but found at least two devices",
            "Input type (torch.FloatTensor) and weight type (torch.cuda.",
            "Input type (torch.HalfTensor) and weight type (torch.cuda.",
            "Input type (torch.cuda.…and weight type (torch.FloatTensor)",
            "Input type (torch.cuda.…and weight type (torch.HalfTensor)",
        ),
        "Two tensors of one operation are on different devices.",
        "create tensors with device=x.device, register constants as buffers, and move the batch to the rank's GPU",
        section=12,
    ),
    KnownError(
        "different-dtypes",
        (
            "mat1 and mat2 must have the same dtype",
            "expected scalar type",
            "to have the same dtype",
            "Input type … and weight type … should be the same",
            "Input type … and bias type … should be the same",
            "self and mat2 must have the same dtype",
            "FlashAttention only support fp16 and bf16 data type",
        ),
        "Two tensors of one operation have different number formats, or one that it does not accept; often half "
        "precision in one place only.",
        "use autocast around the forward pass, or convert the inputs to the weights' type",
        alone=Level.ASIDE,
    ),
    KnownError(
        "matrix-shapes",
        ("shapes cannot be multiplied",),
        "The width of the input does not match the layer.",
        "the second number of mat1 and the first of mat2 must be equal; print the shape one line earlier",
        section=9,
    ),
    KnownError(
        "view-size",
        ("is invalid for input of size",),
        "`view` cannot produce this shape: often the heads do not divide the width, or a batch is smaller than "
        "expected.",
        "check that hidden_size is a multiple of num_attention_heads, and the last batch's size",
        section=10,
    ),
    KnownError(
        "tensor-sizes-differ",
        (
            "must match the size of tensor",
            "stack expects each tensor to be equal size",
            "Sizes of tensors must match except in dimension",
            "must match the existing size",
            "Unable to create tensor, you should probably activate truncation",
        ),
        "Tensors of one operation have different sizes: samples that were not padded to one length, a wrong width, or "
        "(with a size of many millions) a flattened shard of FSDP or ZeRO next to a whole tensor.",
        "pad or truncate in the collate function, and print the shapes one line earlier; with a shard, create the "
        "optimizer after wrapping and use its gathered weights",
        sure=False,
    ),
    KnownError(
        "batch-norm-of-one",
        ("Expected more than 1 value per channel when training",),
        "A batch-norm layer received a single sample, usually the last batch of a rank.",
        "use drop_last=True",
    ),
    KnownError(
        "empty-dataset",
        (
            "num_samples should be a positive integer value, but got num_samples=0",
            "Found 0 images in",
            "but got num_samples=0",
        ),
        "The data set is empty: a wrong path or filter.",
        "print len(dataset) and check the path on this node",
    ),
    KnownError(
        "scaler-half-gradients",
        ("Attempting to unscale FP16 gradients", "ValueError: Attempting to unscale"),
        "GradScaler rejects float16 gradients: the model was converted to half precision.",
        "keep the weights in float32 and use autocast, or use bf16 without a scaler",
        section=31,
    ),
    KnownError(
        "scaler-order",
        ("No inf checks were recorded for this optimizer", "unscale_() has already been called on this optimizer"),
        "GradScaler's calls are in the wrong order, or no parameter has a gradient.",
        "call unscale_, clip, step and update once per optimizer step, after scale and backward",
    ),
    KnownError(
        "loss-scale-at-minimum",
        ("Current loss scale already at minimum", "Minimum loss scale reached"),
        "Too many steps overflowed in fp16, so the loss scale was halved down to its minimum.",
        "use bf16 or a lower learning rate; look for the first NaN in the loss or the data",
        section=32,
    ),
    KnownError(
        "loss-nan",
        (
            "Loss is nan, stopping",
            "Loss is inf, stopping",
            "stopping training … nan",
            "nan values in its",
            "found NaN in local",
            "NaN detected",
            "nan loss encountered",
            "Loss is NaN",
            "The loss returned in `training_step` is nan",
            "probability tensor contains either `inf`, `nan`",
            "found Inf in local",
            "NaN loss",
            "loss is nan",
            "Nan detected in",
            "non-finite loss",
            "Loss became infinite or NaN",
        ),
        "The loss or a gradient is NaN or infinite: training diverged, a number format overflowed, or a batch is bad "
        "(empty, all labels ignored).",
        "use bf16 instead of fp16, a lower learning rate and gradient clipping; find the first bad step and its batch; "
        "if only one rank has it, its GPU or its data",
        section=32,
    ),
    KnownError(
        "nan-in-summary",
        ("NaN or Inf found in input tensor",),
        "A value for TensorBoard was NaN or infinite; training continues.",
        "find the first bad step; it may be a metric only",
        level=Level.HINT,
        sure=False,
    ),
    KnownError(
        "not-implemented-for-half",
        (
            "not implemented for 'Half'",
            "not implemented for 'BFloat16'",
            "value cannot be converted to type at::Half",
            "value cannot be converted to type c10::Half",
            "not implemented for 'Byte'",
            "not implemented for 'Long'",
        ),
        "The operation does not exist for this number format on this device, or the format cannot hold a value; often "
        "the model runs on the CPU by mistake.",
        "check that the model is on the GPU, or use float32 for this operation",
    ),
    KnownError(
        "tensor-on-meta",
        ("Cannot copy out of meta tensor", "is on the meta device", "on meta device"),
        "A parameter has no data yet: the model was created on the device `meta` and not loaded on this rank.",
        "use to_empty and load or initialize the weights, or low_cpu_mem_usage=False",
    ),
)
