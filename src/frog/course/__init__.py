"""The course: labs of graded exercises, a quiz, predictions, and a look at the machine before they begin.

What a learner reads and edits lies under labs/, a folder for each lab and in it one for each exercise; see
docs/exercises.md. `grader/` runs a learner's code and judges it.
"""
