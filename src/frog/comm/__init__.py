"""A rank's world: joining it, leaving it, and the collectives over it."""

from frog.comm.world import World, join_world

__all__ = ["World", "join_world"]
