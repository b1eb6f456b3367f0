"""Empty: the program in check.py runs the learner's code."""
