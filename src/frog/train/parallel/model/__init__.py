"""Model parallelism: ranks share one sample's work. Tensor, sequence, context, expert and pipeline parallelism."""
