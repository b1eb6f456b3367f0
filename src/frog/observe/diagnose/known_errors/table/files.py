"""Known errors of disks, downloads and Python environments."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.table.known import KnownError, Level

HUB = (
    KnownError(
        "hub-unreachable",
        (
            "We couldn't connect to 'https://huggingface.co'",
            "Max retries exceeded with url",
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "Connection error, and we cannot find the requested files",
            "SSLCertVerificationError",
            "NewConnectionError",
            "NameResolutionError",
            "HTTPSConnectionPool",
            "429 Client Error",
            "ConnectionError: Couldn't reach",
        ),
        "A download failed: compute nodes often have no internet; after too many requests, as when every rank "
        "downloads, the hub answers 429.",
        "download on the login node into a shared HF_HOME, then set HF_HUB_OFFLINE=1",
        section=39,
        alone=Level.ASIDE,
    ),
    KnownError(
        "hub-access",
        (
            "You are trying to access a gated repo",
            "Access to model … is restricted",
            "Cannot access gated repo",
            "401 Client Error",
            "403 Client Error",
            "GatedRepoError",
            "RepositoryNotFoundError",
            "is not a local folder and is not a valid model identifier",
            "Repo id must be in the form",
            "HFValidationError",
            "Incorrect path_or_model_id",
            "Can't load tokenizer for",
            "Can't load the configuration of",
            "does not appear to have a file named",
            "is not the path to a directory",
        ),
        "The Hugging Face Hub does not give access to this name: it does not exist, needs a license or a token, or is "
        "meant as a local path that is not on this node, or cannot be downloaded from it.",
        "check the spelling and that the folder exists on every node; accept the license and set HF_TOKEN",
        alone=Level.ASIDE,
    ),
)
"""Specific enough to come before the words of the network, such as a name that does not resolve, in the same line."""

ERRORS = (
    KnownError(
        "externally-managed-environment",
        ("externally-managed-environment",),
        "The system's Python does not allow pip to install into it.",
        "use a virtual environment",
        section=1,
    ),
    KnownError(
        "disk-full",
        (
            "No space left on device",
            "Disk quota exceeded",
            "not enough free disk space",
            "OSError: Not enough disk space",
        ),
        "The disk is full, or your quota is used up.",
        "check `df -h` (also of /tmp and ~/.cache) and `quota`; keep fewer checkpoints and use scratch, not home",
        section=36,
    ),
    KnownError(
        "read-only-disk",
        ("Read-only file system",),
        "A file cannot be written: its disk is mounted read-only.",
        "write to another folder; for caches, set HF_HOME, TRITON_CACHE_DIR and TORCH_HOME",
        alone=Level.ASIDE,
    ),
    KnownError(
        "file-system-error",
        ("Stale file handle", "Transport endpoint is not connected", "Input/output error", "Remote I/O error"),
        "A file system, often a network one, failed, or a file was replaced while a rank had it open.",
        "try again; if it repeats, copy the data to the node's disk, and report the node",
        alone=Level.ASIDE,
    ),
    KnownError(
        "permission-denied",
        ("PermissionError", "Permission denied", "Operation not permitted"),
        "A file or device may not be read or written by this user.",
        "check owner and mode (`ls -l`) on this node; for caches, set HF_HOME, TRITON_CACHE_DIR and TORCH_HOME to a "
        "folder of yours",
        alone=Level.ASIDE,
    ),
    KnownError(
        "folder-created-twice",
        ("FileExistsError",),
        "Several ranks create the same file or folder at the same time, or it is left of an earlier run.",
        "let rank 0 create it, or use exist_ok=True",
        alone=Level.ASIDE,
    ),
    KnownError(
        "file-not-found",
        ("FileNotFoundError", "No such file or directory", "NotADirectoryError"),
        "A file does not exist on this node or for this rank: a relative path, a folder that is not shared, or another "
        "rank that removed or has not yet written it.",
        "check the path on the node of this rank; let other ranks wait (barrier) until rank 0 has written it",
        alone=Level.ASIDE,
    ),
    KnownError(
        "module-not-found",
        ("ModuleNotFoundError", "No module named"),
        "A Python module is not installed in the environment of this rank, or not on its path.",
        "install it in the environment that the ranks use, and print sys.executable; check PYTHONPATH on other nodes",
        alone=Level.ASIDE,
    ),
    KnownError(
        "import-failed",
        ("ImportError", "cannot import name"),
        "A module has no such name or needs a package that is missing: the installed versions often differ from those "
        "that the program was written for.",
        "install the versions that the program names, and the package that the message names",
        alone=Level.ASIDE,
    ),
    KnownError(
        "argument-unknown-to-library",
        ("got an unexpected keyword argument", "missing … required positional argument"),
        "A function was called with other arguments than it has; often the library's version differs from the one that "
        "the program was written for.",
        "compare the library's version with the program's requirements",
        sure=False,
        alone=Level.ASIDE,
    ),
    KnownError(
        "broken-json",
        ("JSONDecodeError",),
        "A file or answer that should be JSON is empty, cut, or something else.",
        "look at the named file; a rank may have read it while another wrote it",
        alone=Level.ASIDE,
    ),
)
