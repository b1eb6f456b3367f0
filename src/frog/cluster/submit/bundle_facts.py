"""bundle.json: the facts about a bundle, and how it was made."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from frog.core.schema import Name, Typed

BUNDLE_JSON = "bundle.json"


class BundleRequest(Typed, frozen=True):
    """Options of the bundle's job files, unless `frog submit` sets others."""

    nodes: Annotated[int, Meta(ge=1, le=10**6)]
    ranks_per_node: Annotated[int, Meta(ge=1, le=10**6)] | None
    time: Name | None
    account: Name | None
    partition: Name | None
    qos: Name | None


class BundleFacts(Typed, frozen=True):
    """The content of bundle.json."""

    KIND: ClassVar[str] = "a bundle"
    FORMAT: ClassVar[int | None] = 1

    frog: Name
    """Version of the Frog that made it."""
    run: Name
    run_file: Name
    settings: list[str]
    """KEY=VALUE for --set."""
    data: Name
    profile: Name
    request: BundleRequest
    wheels: bool
    """True if the bundle has wheels, which fit its platform and Python."""
    platform: Name | None
    python: Name | None
