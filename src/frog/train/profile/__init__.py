"""Profile a short run with torch.profiler, and summarize the result."""
