"""The report's sections that compare a run with the plan; `frog.products` registers them."""
