"""The engine made as a run makes it, up to the weights: its configuration, and how it captures."""
