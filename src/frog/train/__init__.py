"""The training program: the step, the loop, and the code around them."""
