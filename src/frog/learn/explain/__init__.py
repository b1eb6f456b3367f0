"""`frog explain`: small real worlds whose ranks record when they wait for each other."""
