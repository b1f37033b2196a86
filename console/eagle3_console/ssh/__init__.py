"""A host over ssh; the only package that imports asyncssh.

``host`` is the host itself, ``login`` one authenticated connection, ``keys`` and ``host_keys``
what either side proves itself with, ``config`` and ``known_hosts`` the user's files, ``channel``
one running program, ``errors`` the one place where the library's exceptions become words.
"""

from .config import SshFiles
from .host import SshHost

__all__ = ["SshFiles", "SshHost"]
