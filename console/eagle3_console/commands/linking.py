"""From a TARGET to a link that answers, for commands that have no screen.

Questions of the login (an unknown host key, a passphrase) are asked on the
terminal, and refused with the way out where there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from eagle3_agent.protocol import Message, to_json
from eagle3_agent.protocol.messages import Detail, GetRun
from eagle3_agent.protocol.values import RunDetail
from eagle3_console.errors import ConsoleError, error
from eagle3_console.historycache import HistoryCache
from eagle3_console.hosts import AskHostKey, AskSecret, HostKeyQuestion, SecretQuestion
from eagle3_console.linkstate import Connecting, LinkPort, LinkState, Live, Reconnecting
from eagle3_console.remembering import Remembering

from .terminal import Terminal

T = TypeVar("T")

#: Preflight reads every shard's header, over NFS maybe: it takes what it takes.
SLOW = None


def asking(
    terminal: Terminal,
) -> tuple[Callable[[HostKeyQuestion], Awaitable[bool]] | None, AskSecret | None]:
    """The two questions of a login, or None for each where nobody can be asked."""
    if not terminal.interactive:
        return None, None

    async def host_key(question: HostKeyQuestion) -> bool:
        via = f" (reached through {question.via})" if question.via else ""
        terminal.say(
            f"{question.host}{via} is not known yet.\n"
            f"Its {question.key_type} key has the fingerprint {question.fingerprint}\n"
            f"Compare it with what the host's owner tells you; a yes is kept in {question.file}."
        )
        return terminal.confirm("Do you trust this key?", "")

    async def secret(question: SecretQuestion) -> str | None:
        if question.retry:
            terminal.say("that was not right")
        return terminal.secret(question.prompt) or None

    return host_key, secret


def open_link(
    target: str,
    terminal: Terminal,
    *,
    read_only: bool = False,
    python: str | None = None,
    start_agent: bool = True,
) -> LinkPort:
    """A link that is not connected yet.  Raises ConsoleError for a target that cannot be read.

    ``python`` is the profile's interpreter, under which the agent runs if it can.  Without
    ``start_agent``, connecting raises NoAgent where none runs.  The end of a link is not told
    here: whoever waits for an answer gets it as an error.
    """
    # late: asyncssh and its cryptography take longer to import than most commands need to parse
    from eagle3_console.connecting import host_for
    from eagle3_console.link import Link

    ask_host_key: AskHostKey | None
    ask_host_key, ask_secret = asking(terminal)
    host = host_for(target, ask_host_key=ask_host_key, ask_secret=ask_secret, python=python)
    return Link(
        host,
        read_only=read_only,
        on_state=_narrator(terminal, target),
        start_agent=start_agent,
    )


def _narrator(terminal: Terminal, target: str) -> Callable[[LinkState], None]:
    """Says on stderr what becomes of the link; a first connect only where someone watches."""
    lost = False

    def tell(state: LinkState) -> None:
        nonlocal lost
        if isinstance(state, Connecting):
            if terminal.interactive and target != "local":
                terminal.say(f"{target}: {state.step}", "dim")
        elif isinstance(state, Reconnecting):
            if not lost:
                terminal.say(f"{target}: link lost ({state.why.happened}); trying again", "amber")
            lost = True
        elif isinstance(state, Live) and lost:
            terminal.say(f"{target}: link is back", "green")
            lost = False

    return tell


@asynccontextmanager
async def connected(
    target: str,
    terminal: Terminal,
    *,
    read_only: bool = False,
    python: str | None = None,
    start_agent: bool = True,
) -> AsyncIterator[LinkPort]:
    """A live link for the length of a ``with`` block: see ``open_link``.

    Raises ConsoleError (connect).
    """
    link = open_link(target, terminal, read_only=read_only, python=python, start_agent=start_agent)
    try:
        await link.connect()
        for text in link.warnings:
            terminal.say(f"! {text}", "amber")
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def remembered(
    target: str, terminal: Terminal, *, read_only: bool = False, python: str | None = None
) -> AsyncIterator[LinkPort]:
    """As ``connected``, and what passes is kept; without the host, what was kept before.

    Raises ConsoleError (connect) where there is neither.
    """
    link = Remembering(
        open_link(target, terminal, read_only=read_only, python=python), HistoryCache(target)
    )
    try:
        try:
            await link.connect()
        except ConsoleError as problem:
            if link.kept is None:
                raise
            terminal.say(f"{problem.problem.title}: {problem.problem.happened}", "amber")
        for text in link.warnings:
            terminal.say(f"! {text}", "amber")
        yield link
    finally:
        await link.close()


async def ask(link: LinkPort, message: Message, reply: type[T], timeout: float | None = 60.0) -> T:
    """The reply, which must be of the type that the protocol names for this message.

    Raises ConsoleError for a refusal, a lost link, a time-out or another kind of reply.
    """
    answer = await link.ask(message, timeout)
    if not isinstance(answer, reply):
        raise error(
            "The agent's answer makes no sense",
            f"Asked {type(message).__name__}, got {type(answer).__name__}.",
            "Replace the agent with `eagle3-console agent upgrade TARGET`.",
            "internal",
        )
    return answer


def without_wire(reply: Message) -> dict[str, Any]:
    """A reply's facts for ``--json``, without the number that joins it to its question."""
    return {key: value for key, value in to_json(reply).items() if key != "re"}


async def run_detail(link: LinkPort, run: str) -> RunDetail:
    """A run by number, id or ``last``.  Raises ConsoleError when there is none."""
    return (await ask(link, GetRun(0, run), Detail)).detail
