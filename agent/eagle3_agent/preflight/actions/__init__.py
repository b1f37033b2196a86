"""Ways out of what a check found: ``offers`` says what would be done, ``perform`` does it.

Checks offer, a person agrees, the agent makes the check again and acts.  Nothing here changes a
setting of a GPU.
"""
