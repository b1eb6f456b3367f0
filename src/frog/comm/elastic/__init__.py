"""Worlds whose members change: they agree on who is left after a loss, and admit ranks that join.

| read in this order | the idea                                                       |
|--------------------|----------------------------------------------------------------|
| `agreement`        | what ranks tell each other about who is left                   |
| `consensus`        | the rules by which they agree, without sockets or a clock      |
| `survivors`        | a group of ranks that continues when some are lost             |
| `door`             | where a rank that joins asks to be admitted                    |
| `entrance`         | how a group forms: all ranks at the start, or one by one later |
| `membership`       | torch's process group and the world, made anew on each change  |
"""
