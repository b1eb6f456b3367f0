"""A slow network between simulated nodes: each has its own address and link; a switch connects them."""

from frog.launch.network.link import Link, parse_network
from frog.launch.network.network import Network

__all__ = ["Link", "Network", "parse_network"]
