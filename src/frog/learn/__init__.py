"""The course: labs of graded exercises, a quiz, predictions, a learner's folder.

The course's material is under labs/, in one folder per lab with one subfolder per exercise. See
docs/learn/exercises.md.
frog.learn.grader runs and judges learners' solutions.
"""
