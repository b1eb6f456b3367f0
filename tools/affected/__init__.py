"""Tests and exercises that a change reaches: `make affected` prints them, `make test-affected` runs them."""
