"""Small real worlds whose ranks note when they met."""
