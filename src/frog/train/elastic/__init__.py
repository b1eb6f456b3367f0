"""Elastic training: after each membership change, the loop starts again from the state in the ranks' memory.

| file           | what it does                                                                     |
|----------------|----------------------------------------------------------------------------------|
| `survive`      | calls the loop again in each new world                                           |
| `order`        | the order proof of the data, completed before each step                          |
| `copies`       | a copy of each rank's shards on its neighbor                                      |
| `handover`     | sends the state to ranks that have just joined                                   |
| `join`         | `frog join RUN`: a rank that joins a run, or replaces a lost rank                |
"""
