"""Nothing runs beside the learner's code but the program of check.py."""
