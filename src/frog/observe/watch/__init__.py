"""The live page: a run, while it runs and afterwards, as a page, as a file and in the terminal."""
