"""The text of a shell script: its words, and the commands in the order in which they run. It runs nothing."""
