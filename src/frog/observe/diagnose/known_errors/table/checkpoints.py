"""Known errors of loading and saving checkpoints."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

ERRORS = (
    KnownError(
        "checkpoint-missing-keys",
        ("Missing key(s) in state_dict", "Unexpected key(s) in state_dict", "Missing key in checkpoint state_dict"),
        "The checkpoint's names differ from the model's: a prefix such as `module.` from DDP or `_orig_mod.` from "
        "compile, or another model.",
        "compare the first names of both; save model.module.state_dict(); do not disable strict",
        section=34,
    ),
    KnownError(
        "checkpoint-size-mismatch",
        (
            "size mismatch for",
            "Size mismatch between saved",
            "Trying to set a tensor of shape",
            "shape mismatch in checkpoint",
            "because some weights have mismatched shapes",
        ),
        "The checkpoint's tensors have other sizes than the model's: another configuration, vocabulary or number of "
        "classes, or shards of another layout.",
        "build the model from the checkpoint's own configuration",
    ),
    KnownError(
        "checkpoint-optimizer-mismatch",
        ("loaded state dict contains a parameter group that doesn't match", "different number of parameter groups"),
        "The optimizer's state is of another model or of other parameter groups.",
        "create the optimizer as in the saved run (same parameters, order and groups), or load only the weights",
    ),
    KnownError(
        "checkpoint-other-world",
        (
            "The checkpoint being loaded used a DP world size of",
            "DP world size of … but the current world size",
            "zero checkpoints paths are missing",
            "Automatic adjustment of ZeRO's optimizer state partitioning",
        ),
        "The checkpoint was written by another number of ranks, or files of some ranks are missing.",
        "resume with the same number of ranks, convert it (universal checkpoint, zero_to_fp32.py), and check that all "
        "nodes write to one shared folder",
    ),
    KnownError(
        "checkpoint-weights-only",
        ("Weights only load failed", "WeightsUnpickler error"),
        "Since torch 2.6, torch.load by default accepts only tensors, plain values and classes that you allow. "
        "`Unsupported operand` usually means another kind of file: an ordinary pickle, a Git LFS pointer, a web page.",
        "save tensors and plain values; use weights_only=False only for files that you trust",
        section=37,
    ),
    KnownError(
        "checkpoint-damaged",
        (
            "failed finding central directory",
            "invalid header or archive is corrupted",
            "PytorchStreamReader failed",
            "MetadataIncompleteBuffer",
            "InvalidHeaderDeserialization",
            "Error while deserializing header",
            "HeaderTooLarge",
            "HeaderTooSmall",
            "invalid load key",
            "unexpected EOF, expected",
            "EOFError: Ran out of input",
            "pickle data was truncated",
            "UnpicklingError: ",
        ),
        "A checkpoint file is incomplete or not what its name says: a save was killed, a disk was full, a download was "
        "interrupted, or it is a Git LFS pointer.",
        "compare its size with the original; use the previous checkpoint or download it again",
        section=35,
    ),
    KnownError(
        "torch-load-blocked",
        ("due to a serious vulnerability issue in `torch.load`", "require users to upgrade torch to at least v2.6"),
        "transformers refuses torch.load below torch 2.6.",
        "upgrade torch to 2.6 or later, or use safetensors files",
    ),
    KnownError(
        "checkpoint-shared-tensors",
        (
            "Some tensors share memory, this will lead to duplicate memory on disk",
            "The weights trying to be saved contained shared tensors",
        ),
        "safetensors does not save two names of one tensor (tied weights).",
        "use save_model of safetensors, or save_safetensors=False",
    ),
    KnownError(
        "checkpoint-write-failed",
        ("PytorchStreamWriter failed", "unexpected pos … vs", "iostream error", "file write failed"),
        "A checkpoint could not be written, most often because the disk or the quota is full.",
        "check `df -h` and `quota`; keep fewer checkpoints",
        sure=False,
        section=36,
    ),
    KnownError(
        "checkpoint-not-found",
        (
            "Can't find a valid checkpoint at",
            "No valid checkpoint found in output directory",
            "Unable to find latest file at",
            "unable to find latest file",
            "not a checkpoint folder",
        ),
        "This path has no complete checkpoint on this node.",
        "check the path on every node, and that the folder is shared",
        alone=Level.HINT,
    ),
)
