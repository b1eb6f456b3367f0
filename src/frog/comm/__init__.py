"""A rank's world and its axes: joining, leaving, and the collectives over them."""

from frog.core.loading import loading

with loading():  # torch, of which this is the first import in every program of Frog
    from frog.comm.axis import Axis, Pending
    from frog.comm.world import World, join_world

__all__ = ["Axis", "Pending", "World", "join_world"]
