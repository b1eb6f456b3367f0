"""RL post-training: a generator, a trainer, and weights between them."""
