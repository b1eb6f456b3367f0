"""The labs' needs, their substitutes, and the commands that install them."""

from __future__ import annotations

from dataclasses import dataclass

LABS = {
    0: "ready?",
    1: "the foundation",
    2: "the distributed shift",
    3: "the cluster mental model",
    4: "memory",
    5: "models larger than a device",
    6: "your own collective library",
}


@dataclass(frozen=True)
class Need:
    """One requirement that a probe tests."""

    name: str
    section: str
    labs: tuple[int, ...] = ()
    """The labs that use it; empty if it is only helpful, or for later."""
    without: str | None = None
    """The substitute if it is missing or wrong; None if it cannot be substituted."""
    macos: str | None = None
    """The command that installs it on macOS."""
    debian: str | None = None


_ALL = tuple(LABS)
_WORLDS = _ALL[2:]
_PIP_TORCH = 'pip install "torch==2.13.0"'
_CPU_TORCH = f"{_PIP_TORCH} --index-url https://download.pytorch.org/whl/cpu"
_ROOM = "df -h; cd to a folder with free space"


def _gloo(operation: str, without: str | None = None) -> Need:
    again = "pip install --force-reinstall"
    macos, debian = (command.replace("pip install", again) for command in (_PIP_TORCH, _CPU_TORCH))
    if without is not None:
        return Need(f"gloo {operation}", "a world of two (gloo)", _WORLDS, without)
    return Need(f"gloo {operation}", "a world of two (gloo)", _WORLDS, None, macos, debian)


def _tool(name: str, labs: tuple[int, ...], package: str, brew: str | None = None, without: str | None = None) -> Need:
    brought = brew or f"brew install {package}"
    return Need(name, "tools", labs, without, brought, f"sudo apt-get install {package}")


_PYTHON = [
    Need("python", "Python", _ALL, None, "brew install python@3.13", "sudo apt-get install python3 python3-venv"),
    Need("environment", "Python", _ALL, "packages are installed into the system's Python; better: make setup"),
    Need("pip", "Python", _ALL, "the installed packages are enough; to add more: python -m ensurepip, or conda"),
    Need("fork", "Python", _WORLDS, "export FROG_START=spawn: each rank starts Python, which takes longer"),
    Need("spawn", "Python", _WORLDS, "export FROG_START=fork"),
    Need("torch", "PyTorch", _ALL, None, _PIP_TORCH, _CPU_TORCH),
    Need("cpu", "PyTorch", _ALL, None, _PIP_TORCH, _CPU_TORCH),
    Need("gpu", "PyTorch", (), "the CPU: no lab needs CUDA, NCCL or MPS"),
    Need("fork with torch", "PyTorch", _WORLDS, "export FROG_START=spawn: each rank starts Python, which takes longer"),
    Need("torchrun", "PyTorch", _WORLDS, None, _PIP_TORCH, _CPU_TORCH),
    Need("torchrun command", "PyTorch", _WORLDS, "python -m torch.distributed.run; or: source .venv/bin/activate"),
    Need("transformers", "PyTorch", (), None, "pip install transformers", "pip install transformers"),
    Need("accelerate", "PyTorch", (), None, "pip install accelerate", "pip install accelerate"),
    Need("datasets", "PyTorch", (), None, "pip install datasets", "pip install datasets"),
]

OPERATIONS = {
    "all_reduce SUM": None,
    "all_reduce AVG": "SUM, then divide by the world size (Frog does so)",
    "all_reduce MIN": None,
    "all_reduce MAX": None,
    "all_reduce PRODUCT": "no lab uses it",
    "all_gather": None,
    "reduce_scatter": "all_reduce, then keep your own part (Frog does so on gloo)",
    "broadcast": None,
    "reduce": "all_reduce, and only one rank uses the result",
    "gather": "all_gather, and only one rank uses the result",
    "scatter": "broadcast, and each rank keeps its own part",
    "all_to_all": "send and recv between every pair of ranks",
    "send and recv": None,
    "barrier": None,
}
"""The gloo operations that the probe runs, with the substitute for each if its result is wrong."""

_MACHINE = [
    Need("host name", "network", _WORLDS, "export GLOO_SOCKET_IFNAME=lo (macOS: lo0), as Frog's own programs do"),
    Need("host address", "network", (3,), "all simulated nodes are on this machine and use 127.0.0.1"),
    Need(
        "ports",
        "network",
        _ALL,
        None,
        "System Settings > Network > Firewall: let Python accept connections",
        "sudo ufw allow in on lo",
    ),
    Need("namespaces", "network", (3,), "frog run without --network: nodes communicate at this machine's full speed"),
    Need("cores", "machine", _WORLDS, "ranks share cores: the same results, but slower"),
    Need("threads", "machine", _WORLDS, "unset OMP_NUM_THREADS (torchrun then gives each rank one thread)"),
    Need("memory", "machine", _ALL, "close other programs; use worlds of 2 instead of 4: --nproc_per_node=2"),
    Need("disk", "machine", _ALL, None, _ROOM, _ROOM),
    Need("temporary folder", "machine", _ALL, None, "export TMPDIR=$HOME", "export TMPDIR=$HOME"),
    Need("shared memory", "machine", (), "data loaders without workers, as in the labs; docker run --shm-size=1g"),
    Need("open files", "machine", _ALL, "ulimit -n 1024"),
    Need("file watching", "machine", _ALL, "run frog learn check by hand, or export WATCHFILES_FORCE_POLLING=1"),
]

_TOOLS = [
    _tool("git", _ALL, "git", "xcode-select --install", "the labs run, but you cannot commit or push"),
    Need(
        "git identity",
        "tools",
        _ALL,
        'git config --global user.name "Your Name"; git config --global user.email you@example.org',
    ),
    _tool("shell", _ALL, "bash grep coreutils", "brew install bash grep coreutils"),
    _tool("make", _ALL, "make", "xcode-select --install", "type the commands of the Makefile by hand"),
    Need("jupyter", "tools", (), "any editor and a terminal", "pip install jupyterlab", "pip install jupyterlab"),
    Need(
        "vs code",
        "tools",
        (),
        "any editor and a terminal",
        "brew install --cask visual-studio-code",
        "sudo snap install code --classic",
    ),
    _tool("ssh", (), "openssh-client", "brew install openssh"),
    _tool("docker", (), "docker.io", "brew install --cask docker"),
    Need(
        "slurm",
        "tools",
        (3,),
        "the emulator: frog slurm up --emulator",
        debian="sudo apt-get install slurm-wlm munge",
    ),
    Need(
        "rust",
        "tools",
        (),
        None,
        "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh",
        "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh",
    ),
]

NEEDS = [*_PYTHON, *(_gloo(name, without) for name, without in OPERATIONS.items()), *_MACHINE, *_TOOLS]
