"""From the word on the command line to a host; the two kinds of host meet only here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .address import parse_address
from .hosts import AskHostKey, AskSecret, Host
from .local import LocalHost

if TYPE_CHECKING:
    from .ssh import SshFiles


def host_for(
    target: str,
    *,
    ask_host_key: AskHostKey | None = None,
    ask_secret: AskSecret | None = None,
    files: SshFiles | None = None,
    python: str | None = None,
) -> Host:
    """A host that is not yet connected.

    Without ``ask_host_key`` an unknown host key is refused; without ``ask_secret`` locked keys and
    passwords are not tried.  ``python`` is an interpreter on the host to try first; on ``local``
    the console's own is known to fit.
    Raises ConsoleError (code ``usage``) for a target that cannot be read.
    """
    if target == "local":
        return LocalHost()
    address = parse_address(target)
    from .ssh import SshHost  # asyncssh costs 0.2 s, which a local target need not pay

    return SshHost(
        address, ask_host_key=ask_host_key, ask_secret=ask_secret, files=files, python=python
    )
