"""Plan a user's own training program: run it with fake tensors, and compute what a cluster would do."""
