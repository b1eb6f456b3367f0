"""Runs tests for `make test-all`, `make test-affected` and `make ci`, and repeats those whose processes failed."""
