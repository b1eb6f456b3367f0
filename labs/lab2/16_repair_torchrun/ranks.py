"""Empty: the check starts the learner's code with torchrun."""
