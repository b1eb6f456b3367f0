"""Run a learner's code in separate processes under limits, and judge its behavior."""
