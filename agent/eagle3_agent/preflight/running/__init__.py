"""Processes that live on this host, and what they hold."""
