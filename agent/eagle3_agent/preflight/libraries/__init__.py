"""The profile's interpreter, and whether what it holds fits."""
