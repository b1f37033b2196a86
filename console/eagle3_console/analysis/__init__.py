"""Conclusions from values: what differs between two runs; pure."""
