"""Exercises of the deep preflight that need torch: each a process that tells its facts in a file.

``command`` reads what is asked on stdin and writes the report as it goes, so that the report of a
process that hangs says where.  Nothing here judges: that is the preflight's.
"""
