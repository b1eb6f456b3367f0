"""`frog docs`: the documentation as a site of this machine."""

from __future__ import annotations

import argparse


def add_docs_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], frog: argparse.ArgumentParser
) -> None:
    """Add `frog docs`.

    frog: the parser of all commands, of which the reference is made.
    """
    parser = commands.add_parser(
        "docs",
        help="the documentation as a site, on this machine alone",
        description="Build the documentation's site if it is not there or older than its pages, and serve it on "
        "loopback until Ctrl-C. It needs a clone of the repository and `frog[docs]`; no page asks the "
        "network for anything.",
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--build", action="store_true", help="build it, also if it is current, and end")
    parser.add_argument(
        "--examples", action="store_true", help="first make the real runs that the site shows: some minutes, once"
    )
    parser.set_defaults(handler=lambda args: _docs(args, frog))


def _docs(args: argparse.Namespace, frog: argparse.ArgumentParser) -> int:
    from frog.site.build import build_site, find_clone, is_current
    from frog.site.examples import make_examples
    from frog.site.serve import serve

    root = find_clone()
    work = root / "build" / "docs"
    if args.examples:
        make_examples(root, work / "examples")
    if args.build or args.examples or not is_current(root, work / "site"):
        print(f"site: {build_site(root, frog, work)}")
    if not args.build:
        serve(work / "site", args.port)
    return 0
