"""What the console sends to a host before the agent is there: a shell script and an unpacker.

Nothing here is imported by the console to be run; ``deploy`` sends it as text.
"""
