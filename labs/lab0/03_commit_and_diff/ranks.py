"""Nothing runs beside the learner's files: the check starts the script with bash."""
