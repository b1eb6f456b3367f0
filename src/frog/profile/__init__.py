"""A short run under torch.profiler, and what it showed."""
