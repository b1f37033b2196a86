"""The daemon: commands of clients in, events of runs out.

``daemon`` is the process (lock, socket, log, leaving), ``agent`` what all
clients share, ``client`` one connection, ``requests`` what each message
does, ``streams`` a run's files on their way to a client, ``host_feed`` the
telemetry, ``launch`` how runs begin and queue, ``probing`` the questions put
to the worker's interpreter.  Nothing here imports torch or the worker.
"""
