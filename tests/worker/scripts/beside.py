"""What 03_extract.py imports from its own folder."""

LAYERS = (1, 3, 4)
