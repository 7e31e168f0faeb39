"""The whole road on real images, as a client travels it."""
