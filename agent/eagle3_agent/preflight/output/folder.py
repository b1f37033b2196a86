"""Check ``output``: the folder can be written, and holds nothing of another kind."""

from __future__ import annotations

import os

from eagle3_agent.outputs import MARKER
from eagle3_agent.preflight.actions import offers
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import listed, number, plural, show, size
from eagle3_agent.protocol.values import Action, Profile, Verdict

from . import surroundings
from .output_facts import PROBE, OutputFacts

_OTHER = "Choose another output.dir, or clear the run that wrote it."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    path = show(seen.path, 300)
    if seen.problem:
        return CHECK.verdict(
            "block",
            f"{path} {show(seen.problem, 400)}",
            "Every sample is written there.",
            "Choose an output.dir that this user may write, or make that one writable.",
        )
    if surroundings.same(seen.real or seen.path, profile.model.path):
        return CHECK.verdict(
            "block",
            f"{path} is the model's own folder",
            "Samples would lie among the checkpoint's files; a loader reads what it finds there.",
            "Choose an output.dir of its own.",
        )
    if seen.inside.marker_problem:
        return CHECK.verdict(
            "block",
            f"{path}/{MARKER} {show(seen.inside.marker_problem, 300)}",
            "It says whose samples the folder holds.",
            "Move the folder away or choose another output.dir.",
            _aside(seen),
        )
    if seen.inside.marker is None and (seen.inside.samples or seen.inside.kept):
        return CHECK.verdict(
            "block",
            f"{path} holds {plural(seen.inside.samples, 'sample file')} and no {MARKER}",
            "Nobody knows of which model, layers and data they are; "
            "a trainer would mix them with this run's.",
            "Choose another output.dir, or move those files away.",
            _aside(seen),
        )
    differences = _differences(seen, profile)
    if differences:
        return CHECK.verdict(
            "block",
            f"{path} holds {plural(seen.inside.samples, 'sample file')} of another run: "
            + "; ".join(differences),
            "Samples of two kinds in one folder would be trained on as one.",
            _OTHER,
            _aside(seen),
        )
    return _writable(seen, path)


def _aside(seen: OutputFacts) -> list[Action]:
    """The folder can make room under its name.

    A link stays, since what it leads to is shared, and so does a folder in which more lies that
    this run, the agent or the host needs under its name.
    """
    if seen.link or not seen.inode or seen.holds:
        return []
    path = os.path.normpath(seen.real or seen.path)
    info = offers.FileInfo(seen.device, seen.inode, seen.modified)
    return [offers.move_aside(path, info, seen.at)]


def _differences(seen: OutputFacts, profile: Profile) -> list[str]:
    marker = seen.inside.marker
    if marker is None:
        return []
    pairs = (
        ("model", marker.model.rstrip("/"), profile.model.path.rstrip("/")),
        ("data", marker.data.rstrip("/"), profile.data.path.rstrip("/")),
        ("layers", _joined(marker.layers), _joined(profile.capture.layers)),
        ("format", marker.output_format, profile.output.format),
    )
    return [f"{n} {show(a, 120)} there, {show(b, 120)} asked" for n, a, b in pairs if a != b]


def _joined(layers: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, layers))}]"


def _writable(seen: OutputFacts, path: str) -> Verdict:
    how = f"written, synced and renamed in {seen.write_seconds * 1000:.0f} ms"
    if not seen.exists:
        parent = seen.place == os.path.dirname(os.path.normpath(seen.path))
        where = "" if parent else f" in {show(seen.place, 300)}"
        saw = f"{path} will be made{where}: {how}"
    elif seen.inside.marker is not None:
        saw = (
            f"{path}: {how}; holds {plural(seen.inside.samples, 'sample file')} of the same model, "
            f"layers and data (run {show(seen.inside.marker.run, 40) or 'unknown'}), of which "
            f"{about(seen)}{number(seen.inside.kept)} would be kept, {size(seen.inside.kept_bytes)}"
        )
    else:
        saw = f"{path}: {how}"
    if seen.real:
        saw += f"; really at {show(seen.real, 300)}"
    if seen.outer:
        return CHECK.verdict(
            "warn",
            f"{saw}; lies within {show(seen.outer, 200)}, which holds the samples of a run",
            "A trainer takes every sample below a folder: whoever trains on that one gets these.",
            "Choose an output.dir outside of it.",
        )
    if seen.inside.strangers:
        return CHECK.verdict(
            "warn",
            f"{saw}; also there: {listed([show(n, 60) for n in seen.inside.strangers], 3)}",
            "A trainer takes every file below the folder whose name ends in pt for a sample.",
            "Move those files away before training.",
        )
    return CHECK.verdict("pass", saw)


def about(seen: OutputFacts) -> str:
    """Before figures of what is kept, where not every file was compared."""
    return "" if seen.inside.exact else "about "


CHECK = Check(
    id="output",
    title="Output folder writable",
    needs=(PROBE,),
    judge=judge,
    silence="block",
    silence_why="The worker writes to the same place and would hang there.",
    silence_todo="Look at the mount that holds the output folder, or choose another output.dir.",
)
