"""Known errors of distributed jobs, and the explanation of a log by them."""
