"""The course: labs of graded exercises, a quiz, predictions, a learner's folder.

What a learner reads and edits lies under labs/, a folder for each lab and in it one for each exercise; see
docs/exercises.md. What a learner wrote is run and judged by frog.learn.grader.
"""
