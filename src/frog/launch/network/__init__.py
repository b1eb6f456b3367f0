"""A slow network between pretended nodes: each with its own address, its own link, and a switch in the middle."""

from frog.launch.network.link import Link, parse_network
from frog.launch.network.network import Network

__all__ = ["Link", "Network", "parse_network"]
