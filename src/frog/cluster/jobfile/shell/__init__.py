"""The text of a shell script: its words, and its commands in the order in which they run. Nothing is executed."""
