"""Where the ranks run: from (node, local rank) to the global rank, and back.

Everywhere, ranks_per_node[n] is the number of ranks on node n, at least 1: [2, 1, 3] means 3 nodes and a world of 6.
"""


def world_size(ranks_per_node: list[int]) -> int:
    """Return WORLD_SIZE: the number of ranks on all nodes."""
    return sum(ranks_per_node)


def global_rank(ranks_per_node: list[int], node_rank: int, local_rank: int) -> int:
    """Return the RANK of the process with this LOCAL_RANK on the node with this NODE_RANK.

    Raises:  ValueError if the node, or the local rank on it, does not exist.
    """
    if not 0 <= node_rank < len(ranks_per_node):
        raise ValueError(f"node_rank is {node_rank}: nodes count from 0 to {len(ranks_per_node) - 1}")
    if not 0 <= local_rank < ranks_per_node[node_rank]:
        raise ValueError(f"local_rank is {local_rank}: node {node_rank} has {ranks_per_node[node_rank]} ranks")
    return sum(ranks_per_node[:node_rank]) + local_rank


def place(ranks_per_node: list[int], rank: int) -> tuple[int, int]:
    """Return (node_rank, local_rank) of the process with this RANK: the reverse of global_rank.

    Raises:  ValueError if the rank does not exist in this world.
    """
    if not 0 <= rank < world_size(ranks_per_node):
        raise ValueError(f"no rank {rank}")
    return rank % len(ranks_per_node), rank // len(ranks_per_node)
