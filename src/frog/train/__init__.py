"""The training program: the step, the loop, and what stands around it."""
