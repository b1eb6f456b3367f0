"""Collectives of our own, on sockets and shared memory, in Python and numpy. docs/collectives.md explains them.

| read in this order | the idea                                                                        |
|--------------------|---------------------------------------------------------------------------------|
| `frames`           | what stands in front of the bytes on a socket, and whose it is                  |
| `connection`       | a socket with a peer at its other end; many transfers under way at once          |
| `rendezvous`       | who is there, who is who: from an address book to a connection between each two |
| `arithmetic`       | sum, average, minimum, maximum, product of buffers, of every type               |
| `exchange`         | small messages: everybody to everybody, or doubling; broadcast by a tree        |
| `ring`             | large ones: reduce-scatter and all-gather around a ring                         |
| `shared_memory`    | ranks of one machine, through memory that both see                              |
| `cost`             | which of these, by latency and bandwidth                                        |
| `group`            | the collectives that a caller sees                                              |
| `under_way`        | what was begun: it is waited for, and calls back                                |
| `worker`           | asynchronous ones, on a thread                                                  |
| `messages`         | send and receive, with tags                                                     |
"""
