"""A profile: read, judged as a whole, edited without losing comments.

All findings of a file are reported together, each with its line and its way
out.  What a single value may be stands in ``profile_settings``, where a name
is looked for in ``profile_files``.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputSection,
    Problem,
    Profile,
)

from .errors import ConsoleError
from .profile_files import available, file_error, resolve
from .profile_settings import (
    ALL,
    BY_KEY,
    SECTIONS,
    SETTINGS,
    Setting,
    check,
    from_text,
    nearest,
    size_bytes,
)
from .profile_settings import nearest_key as _nearest_key

__all__ = [
    "SETTINGS",
    "Finding",
    "ProfileError",
    "Source",
    "available",
    "build",
    "load",
    "parse",
    "read",
    "resolve",
    "set_values",
    "template",
]

_FILE_MAX = 1024 * 1024
_FROM_SET = "--set"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where it stands, and what to do about it."""

    place: str
    """The file's name, or ``--set`` for a value of the command line."""
    line: int | None
    column: int | None
    key: str
    """Dotted, such as ``data.max_samples``; empty for the file as a whole."""
    what: str
    todo: str

    def __str__(self) -> str:
        spot = self.place
        if self.line is not None:
            spot += f":{self.line}"
            if self.column is not None:
                spot += f":{self.column}"
        key = f" {self.key}:" if self.key else ""
        return f"{spot}:{key} {self.what}; {self.todo}"


class ProfileError(ConsoleError):
    """A profile that cannot be used, with every finding at once."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        many = f"{len(findings)} problems" if len(findings) != 1 else "a problem"
        super().__init__(
            Problem(
                title=f"Profile {name} has {many}",
                happened="\n".join(map(str, findings)),
                todo="Mend this and try again; `eagle3-console profiles check` asks no host.",
                code="usage",
            )
        )
        self.findings = tuple(findings)


@dataclass
class Problems:
    """Collects findings while a profile is read; the caller raises once, at the end."""

    source: Source
    found: list[Finding] = field(default_factory=list)

    def add(self, key: str, what: str, todo: str) -> None:
        line = None if key in self.source.overridden else self.source.line_of(key)
        place = _FROM_SET if key in self.source.overridden else str(self.source.path)
        self.found.append(Finding(place, line, None, key, what, todo))

    def has(self, key: str) -> bool:
        return any(finding.key == key for finding in self.found)

    def raise_if_any(self) -> None:
        if self.found:
            ordered = sorted(self.found, key=lambda f: f.line if f.line is not None else 1 << 30)
            raise ProfileError(self.source.name, ordered)


@dataclass
class Source:
    """A profile as text, with its comments: what an editor changes and saves."""

    path: Path
    document: tomlkit.TOMLDocument
    overridden: set[str] = field(default_factory=set)
    """Keys whose value came from ``--set``."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where sections and keys stand in the file, from 1; what ``--set`` adds stands nowhere."""

    @property
    def name(self) -> str:
        return self.path.stem

    def text(self) -> str:
        return tomlkit.dumps(self.document)

    def plain(self) -> dict[str, Any]:
        """The document as plain Python values."""
        return self.document.unwrap()

    def line_of(self, key: str) -> int | None:
        """The line (from 1) on which a key is set, or else its section; None if it has neither."""
        return self.lines.get(key, self.lines.get(key.partition(".")[0]))

    def save(self) -> None:
        """Replace the file whole.  Raises ConsoleError when it cannot be written."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.write_text(self.text(), encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError as problem:
            temporary.unlink(missing_ok=True)
            raise file_error(self.path, problem.strerror or str(problem), "written") from None


_HEADER = re.compile(r"^\s*\[\s*([A-Za-z0-9_\-.\" ]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-.\" ]+?)\s*=")


def _lines(text: str) -> dict[str, int]:
    """Where sections and keys stand.  tomlkit keeps no positions, so this reads the text again.

    A look-alike inside a multi-line string can be taken for a key; the first place wins and the
    result serves messages only.
    """
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.split("\n"), start=1):
        header = _HEADER.match(line)
        if header:
            section = _dotted(header.group(1))
            found.setdefault(section, number)
            continue
        key = _KEY.match(line)
        if key:
            name = _dotted(key.group(1))
            found.setdefault(f"{section}.{name}" if section else name, number)
    return found


def _dotted(text: str) -> str:
    return ".".join(part.strip().strip('"') for part in text.split("."))


# --------------------------------------------------------------------------- reading


def read(path: Path) -> Source:
    """The file as a document; nothing in it is judged yet.

    Raises ProfileError for broken TOML (with line and column), ConsoleError for a file that
    cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_MAX + 1)
    except OSError as problem:
        raise file_error(path, problem.strerror or str(problem), "read") from None
    if len(data) > _FILE_MAX:
        raise file_error(path, f"more than {_FILE_MAX} bytes, which is no profile", "read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise file_error(path, f"line {line} is not UTF-8", "read") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Source:
    """As ``read``, from a text; ``path`` names it in messages and resolves relative paths."""
    try:
        return Source(path, tomlkit.parse(text), lines=_lines(text))
    except ParseError as problem:
        what = str(problem).rsplit(" at line", 1)[0]
        line, column = problem.line, problem.col
    except (TOMLKitError, ValueError, RecursionError) as problem:
        what, line, column = str(problem) or type(problem).__name__, None, None
    finding = Finding(str(path), line, column, "", f"broken TOML: {what}", "mend this line first")
    raise ProfileError(path.stem, [finding])


def set_values(source: Source, assignments: Iterable[str]) -> None:
    """Apply ``section.key=value`` texts to the document; comments and order stay.

    ``host.env.NAME=value`` sets one variable.  Raises ProfileError with every text that names no
    setting; whether a value fits is ``build``'s to say.
    """
    findings: list[Finding] = []
    for text in assignments:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            findings.append(
                Finding(
                    _FROM_SET, None, None, "", f'"{text}" sets nothing', "write section.key=value"
                )
            )
        elif key.startswith("host.env.") and len(key) > len("host.env."):
            _table(_table(source.document, "host"), "env")[key[len("host.env.") :]] = value
            source.overridden.add("host.env")
        elif key in BY_KEY:
            setting = BY_KEY[key]
            _assign(source, setting, from_text(setting, value))
        else:
            findings.append(Finding(_FROM_SET, None, None, key, *_unknown_key(key)))
    if findings:
        raise ProfileError(source.name, findings)


def _assign(source: Source, setting: Setting, value: Any) -> None:
    table = _table(source.document, setting.section)
    source.overridden.add(setting.key)
    if setting.takes_all and value == ALL:
        table.pop(setting.name, None)
        return
    table[setting.name] = value


def _table(parent: Any, name: str) -> Any:
    """The table ``name`` of ``parent``, made where it is missing or is no table."""
    if not isinstance(parent.get(name), Mapping):
        parent[name] = tomlkit.inline_table() if name == "env" else tomlkit.table()
    return parent[name]


def _unknown_key(key: str) -> tuple[str, str]:
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        close = nearest(section, SECTIONS)
        if close:
            return "no such section", f"did you mean [{close}]?"
        moved = _nearest_key("", section) if not name else None
        if moved:
            return "no such key at the top level", f"did you mean {moved}?"
        return "no such section", f"the sections are {', '.join(SECTIONS)}"
    close = _nearest_key(section, name)
    if close:
        return "no such key", f"did you mean {close}?"
    known = ", ".join(s.name for s in SETTINGS if s.section == section)
    return "no such key", f"[{section}] takes {known}"


# --------------------------------------------------------------------------- judging


def load(path: Path, sets: Sequence[str] = (), *, local: bool = False) -> Profile:
    """Read, override and judge a profile: ``read``, ``set_values``, ``build``."""
    source = read(path)
    set_values(source, sets)
    return build(source, local=local)


def build(source: Source, *, local: bool = False) -> Profile:
    """The resolved profile.  Raises ProfileError with everything that is wrong.

    Paths are paths on the host and must be absolute.  With ``local`` the host is this machine:
    then ``~`` is the user's home and a relative path starts at the profile's folder.
    """
    problems = Problems(source)
    values = _values(source, problems)
    for key in [s.key for s in SETTINGS if s.kind == "path"]:
        if key in values:
            values[key] = _path(source, key, values[key], problems, local)
    _across(values, problems)
    problems.raise_if_any()
    return _resolved(source.name, values)


def _values(source: Source, problems: Problems) -> dict[str, Any]:
    """Every well-formed value by its dotted key; what is not well-formed is reported."""
    values: dict[str, Any] = {}
    content = source.plain()
    for section, table in content.items():
        if section not in SECTIONS:
            problems.add(section, *_unknown_key(section))
        elif not isinstance(table, dict):
            problems.add(section, "is not a section", f"write it as [{section}]")
        else:
            for name in table:
                if f"{section}.{name}" not in BY_KEY:
                    problems.add(f"{section}.{name}", *_unknown_key(f"{section}.{name}"))
    for setting in SETTINGS:
        table = content.get(setting.section, {})
        if not isinstance(table, dict):
            continue
        if setting.name not in table:
            if setting.required:
                example = f"{setting.name} = {setting.example}"
                problems.add(setting.key, "is missing", f"write {example} in [{setting.section}]")
            continue
        faults = check(setting, table[setting.name])
        for fault in faults:
            problems.add(setting.key, fault.what, fault.todo)
        if not faults:
            values[setting.key] = table[setting.name]
    return values


def _path(source: Source, key: str, value: str, problems: Problems, local: bool) -> str:
    if value.startswith("/"):
        return _not_root(source, key, value, problems)
    if local:
        try:
            given = Path(value).expanduser()
        except RuntimeError:
            problems.add(key, f'no home folder is known for "{value}"', "write the whole path")
            return value
        # what a person types is meant from where they stand, what a file says from where it lies
        base = Path.cwd() if key in source.overridden else source.path.parent.absolute()
        # not resolve(): a venv's python is a symlink that must stay one
        return os.path.normpath(base / given)
    if value.startswith("~"):
        problems.add(
            key,
            f'"{value}" starts at a home folder, and the host\'s is not known here',
            "write the whole path, as `echo ~` prints it on the host",
        )
    else:
        problems.add(
            key,
            f'"{value}" is relative, and a path on the host has nothing to start from',
            "write the whole path, from /",
        )
    return value


def _not_root(source: Source, key: str, value: str, problems: Problems) -> str:
    if key == "output.dir" and os.path.normpath(value) in ("/", "//"):
        problems.add(key, "is the root of the file system", "name a folder of its own")
    return value


def _across(values: Mapping[str, Any], problems: Problems) -> None:
    """What no single value can tell."""
    seq_length = values.get("data.seq_length", DataSection.seq_length)
    room = values.get("model.max_model_len", ModelSection.max_model_len)
    if seq_length > room:
        key = "data.seq_length" if "data.seq_length" in values else "model.max_model_len"
        problems.add(
            key,
            f"data.seq_length {seq_length} is longer than model.max_model_len {room}, so the "
            "engine would cut samples without a word",
            "raise model.max_model_len or lower data.seq_length",
        )
    _engine_across(values, problems)
    data, output = values.get("data.path"), values.get("output.dir")
    if data is not None and data == output:
        problems.add("output.dir", "is the data's own path", "name another folder")


def _engine_across(values: Mapping[str, Any], problems: Problems) -> None:
    name = values.get("engine.name", EngineSection.name)
    if name == "script" and "engine.script" not in values and not problems.has("engine.script"):
        example = BY_KEY["engine.script"].example
        problems.add(
            "engine.script",
            "is missing, and engine script runs it",
            f"write script = {example} in [engine]",
        )
    for key in ("engine.script", "engine.args"):
        if key in values and name != "script":
            problems.add(
                key, "belongs to engine script", 'remove it, or write name = "script" in [engine]'
            )
    tokens, seqs = values.get("engine.max_num_batched_tokens"), values.get("engine.max_num_seqs")
    if tokens is not None and seqs is not None and tokens < seqs:
        problems.add(
            "engine.max_num_batched_tokens",
            f"{tokens} is less than engine.max_num_seqs {seqs}, and each sample in flight takes "
            "a token at least",
            "raise engine.max_num_batched_tokens or lower engine.max_num_seqs",
        )


def _resolved(name: str, values: Mapping[str, Any]) -> Profile:
    def section(title: str) -> dict[str, Any]:
        return {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{title}.")}

    data = section("data")
    if data.get("max_samples") == ALL:
        data["max_samples"] = None
    model = section("model")
    if "gpu_memory_utilization" in model:
        model["gpu_memory_utilization"] = float(model["gpu_memory_utilization"])
    output = section("output")
    if "buffer" in output:
        output["buffer_bytes"] = size_bytes(output.pop("buffer"))
    engine = section("engine")
    engine["args"] = tuple(engine.get("args", ()))
    return Profile(
        name=name,
        host=HostSection(**section("host")),
        model=ModelSection(**model),
        capture=CaptureSection(tuple(values["capture.layers"])),
        data=DataSection(**data),
        output=OutputSection(**output),
        engine=EngineSection(**engine),
    )


# --------------------------------------------------------------------------- writing


def template() -> str:
    """A new profile: the required settings to fill in, the others as comments."""
    lines = ["# A profile of eagle3-console.  All paths are paths on the GPU host.", ""]
    for section in SECTIONS:
        own = [s for s in SETTINGS if s.section == section and s.example]
        lines.append(f"[{section}]")
        for setting in own:
            mark = "" if setting.required else "# "
            lines += textwrap.wrap(setting.doc, 96, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"{mark}{setting.name} = {setting.example}")
        lines.append("")
    return "\n".join(lines)
