"""bundle.json: what a bundle is, and what it was made with."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from frog.core.schema import Name, Typed

BUNDLE_JSON = "bundle.json"


class BundleRequest(Typed, frozen=True):
    """The options that the job files of a bundle have where `frog submit` names no others."""

    nodes: Annotated[int, Meta(ge=1, le=10**6)]
    ranks_per_node: Annotated[int, Meta(ge=1, le=10**6)] | None
    time: Name | None
    account: Name | None
    partition: Name | None
    qos: Name | None


class BundleFacts(Typed, frozen=True):
    """What stands in bundle.json."""

    KIND: ClassVar[str] = "a bundle"
    FORMAT: ClassVar[int | None] = 1

    frog: Name
    """The version of Frog that made it."""
    run: Name
    run_file: Name
    settings: list[str]
    """KEY=VALUE for --set."""
    data: Name
    profile: Name
    request: BundleRequest
    wheels: bool
    """Whether it has them: for this platform, and this Python."""
    platform: Name | None
    python: Name | None
