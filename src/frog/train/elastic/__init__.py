"""Elastic training: the loop is called again each time the world has changed, from the state that its ranks hold.

| file           | what it does                                                                     |
|----------------|----------------------------------------------------------------------------------|
| `survive`      | calls the loop again in the world that is left or joined                         |
| `order`        | the proof of the data order, complete before each step                           |
| `copies`       | a second copy of what only one rank holds, on its neighbour                      |
| `handover`     | gives the state to ranks that have just joined                                   |
| `join`         | `frog join RUN`: a rank that joins, or replaces a lost one                       |
"""
