"""`frog learn start`: the first ten minutes, with two ranks."""
