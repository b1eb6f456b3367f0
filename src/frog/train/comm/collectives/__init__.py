"""Frog's own collectives, on sockets and shared memory, in Python and numpy. docs/measure/collectives.md explains them.

| read in this order | the idea                                                                        |
|--------------------|---------------------------------------------------------------------------------|
| `frames`           | the header before each payload on a socket, and its authentication              |
| `connection`       | a socket to one peer, with many concurrent transfers                            |
| `rendezvous`       | how ranks find and authenticate each other: from addresses to connections       |
| `arithmetic`       | sum, average, minimum, maximum and product of buffers of every type             |
| `exchange`         | small messages: direct exchange, or recursive doubling; broadcast along a tree  |
| `ring`             | large messages: reduce-scatter and all-gather around a ring                     |
| `shared_memory`    | ranks of one machine exchange data through shared memory                        |
| `cost`             | the choice of algorithm, by latency and bandwidth                               |
| `group`            | the collectives that callers use                                                |
| `under_way`        | an operation that has begun: callers wait for it, or register a callback        |
| `worker`           | asynchronous collectives, on a thread                                           |
| `messages`         | send and receive, with tags                                                     |
"""
