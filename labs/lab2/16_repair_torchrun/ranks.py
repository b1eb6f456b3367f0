"""Nothing runs beside the learner's code: the check starts it with torchrun."""
