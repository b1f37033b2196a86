"""The data: rows and tokens, read without its libraries."""
