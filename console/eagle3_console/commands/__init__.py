"""The headless commands, one file a family.

Each file has ``add(commands)``, which declares its part of the command line,
and coroutines that take the parsed arguments and the terminal and return an
exit code.  What they print is worded in ``render``; nothing here draws the TUI.
"""
