"""Registered training data: intake, rows, images, and the snapshots that versions are trained on."""
