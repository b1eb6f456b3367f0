"""Programs on a node: torchrun's agent, the fork server that starts its ranks, and the rendezvous store."""
