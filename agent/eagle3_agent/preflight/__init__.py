"""Is this host ready for this profile?  Facts are collected, then judged.

``check`` is the contract, ``runner`` collects and judges, ``catalogue`` lists
the checks; every other module is one subject.  Nothing here changes the host:
the one thing that is written (output's write probe) is removed again.

Nothing is imported here: each probe is a process of its own and pays for what it imports.
"""
