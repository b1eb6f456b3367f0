"""The proof that strategies compute what one process computes."""
