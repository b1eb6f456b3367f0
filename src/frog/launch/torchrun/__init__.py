"""What runs on a node: torchrun's agent, the fork server that starts its ranks, and the store of the rendezvous."""
