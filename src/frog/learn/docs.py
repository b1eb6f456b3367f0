"""`frog docs`: serve the documentation site locally. `tools/site`, in a clone of the repository, builds it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import frog
from frog.core.errors import UsageError


def add_docs_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], all_commands: Callable[[], argparse.ArgumentParser]
) -> None:
    """Add `frog docs`.

    all_commands: builds the parser of all commands, from which the command reference is generated.
    """
    parser = commands.add_parser(
        "docs",
        help="serve the documentation site on this machine only",
        description="Build the documentation site if it is missing or older than its pages, and serve it on "
        "loopback until Ctrl-C. The command needs a clone of the repository and `frog[docs]`; no page uses the "
        "network.",
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free port")
    parser.add_argument("--build", action="store_true", help="build the site even if it is current, and exit")
    parser.add_argument(
        "--examples", action="store_true", help="first produce the runs that the site shows (takes a few minutes, once)"
    )
    parser.set_defaults(handler=lambda args: _docs(args, all_commands))


def find_clone() -> Path:
    """Return the repository's root.

    Raises:  UsageError if Frog was installed without the repository.
    """
    root = Path(frog.__file__).resolve().parents[2]
    if (root / "docs").is_dir() and (root / "tools" / "site").is_dir():
        return root
    raise UsageError(
        "the site is built from the repository's pages, but Frog was installed without them",
        "clone the repository and run `make docs` there; `frog learn` and `frog COMMAND --help` work here",
    )


def _docs(args: argparse.Namespace, all_commands: Callable[[], argparse.ArgumentParser]) -> int:
    root = find_clone()
    sys.path.insert(0, str(root))
    from tools.site.build import build_site, is_current
    from tools.site.examples import make_examples
    from tools.site.serve import serve

    work = root / "build" / "docs"
    if args.examples:
        make_examples(root, work / "examples")
    if args.build or args.examples or not is_current(root, work / "site"):
        print(f"site: {build_site(root, all_commands(), work)}")
    if not args.build:
        serve(work / "site", args.port)
    return 0
