"""Worlds whose members change: the survivors of a loss agree on their membership, and admit joining ranks.

| read in this order | the idea                                                       |
|--------------------|----------------------------------------------------------------|
| `agreement`        | the proposals that ranks exchange about the surviving ranks    |
| `consensus`        | the rules by which they agree, without sockets or a clock      |
| `survivors`        | a group of ranks that continues when some are lost             |
| `join_endpoint`    | where a joining rank asks to be admitted                       |
| `entrance`         | how a group forms: all ranks at the start, or one by one later |
| `membership`       | torch's process group and the world, rebuilt on each change    |
"""
