"""`frog class`: what `frog learn export` wrote for many learners, checked against each journal, on one page."""
