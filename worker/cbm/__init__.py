"""The concept bottleneck model: image → concept probabilities → class."""
