"""A profile being edited: its text, what a person changed, and what is wrong with it; pure.

The text is never touched.  Changes are kept beside it by key and applied to a fresh document, so
that comments and order survive, one change can be taken back, and all of them can be put on a
file that somebody else has changed meanwhile.  Files are ``profile_save``'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Whitespace

from eagle3_agent.protocol.values import (
    CaptureSection,
    DataSection,
    EngineSection,
    HostSection,
    ModelSection,
    OutputSection,
    Profile,
)

from . import profile as profiles
from .profile import Finding, ProfileError, Source
from .profile_settings import ALL, BY_KEY, SECTIONS, SETTINGS, Fault, Setting, check, from_text

_SECTION_TYPES: Mapping[str, type[Any]] = {
    "host": HostSection,
    "model": ModelSection,
    "capture": CaptureSection,
    "data": DataSection,
    "output": OutputSection,
    "engine": EngineSection,
}


@dataclass(frozen=True)
class Draft:
    """``changes`` on top of ``text``, by dotted key; None leaves a setting out."""

    path: Path
    """The file; for a draft without one, the name that it would have."""
    text: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    on_disk: bool = True
    """The text is what the file held; else the draft came from a run."""
    run: str = ""
    """The run whose profile this is."""
    against: Mapping[str, Any] = field(default_factory=dict)
    """Without a file: the settings that the values are compared with."""
    against_name: str = ""

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Row:
    """One setting, or one key of the file that is no setting."""

    key: str
    setting: Setting | None
    value: Any
    """None where it is left out."""
    before: Any
    """What the file holds, or the profile that the draft is compared with."""
    findings: tuple[Finding, ...] = ()
    compared: str = ""
    """Whose value ``before`` is; empty for the file's own."""

    @property
    def changed(self) -> bool:
        return not _same(self.value, self.before)

    @property
    def section(self) -> str:
        """Where it stands in a list of settings; what is none stands together, at the end."""
        return self.setting.section if self.setting is not None else "no setting"


# --------------------------------------------------------------------------- making one


def of_text(path: Path, text: str) -> Draft:
    """A draft of a file.  Raises ProfileError for broken TOML."""
    profiles.parse(text, path)
    return Draft(path, text)


def of_run(
    resolved: Profile, run: str, *, file: Draft | None = None, against: Profile | None = None
) -> Draft:
    """A run's profile: as changes on ``file`` when it bears the same name, else without a file.

    Without one the values are compared with ``against``, the profile that is loaded.
    """
    wanted = settings_of(resolved)
    if file is None:
        compared = settings_of(against) if against is not None else {}
        name = against.name if against is not None else ""
        path = Path(f"{resolved.name}.toml")
        return Draft(path, _text_of(wanted), {}, False, run, compared, name)
    found = _settled(file)
    changes = {s.key: wanted.get(s.key) for s in SETTINGS if wanted.get(s.key) != found.get(s.key)}
    return replace(file, changes=changes, run=run)


def settings_of(profile: Profile) -> dict[str, Any]:
    """The settings that make this profile, by key; those at their default are left out."""
    found: dict[str, Any] = {}
    for part in dataclasses.fields(profile):
        section = getattr(profile, part.name)
        if not dataclasses.is_dataclass(section):
            continue
        for item in dataclasses.fields(section):
            value = getattr(section, item.name)
            if value is None or value == _default(item):
                continue
            name = "buffer" if item.name == "buffer_bytes" else item.name
            key = f"{part.name}.{name}"
            found[key] = list(value) if isinstance(value, tuple) else value
    return {s.key: found[s.key] for s in SETTINGS if s.key in found}


def defaults() -> dict[str, Any]:
    """The value that a setting has when it is left out, where there is one."""
    found = {}
    for part in dataclasses.fields(Profile):
        kind = _SECTION_TYPES.get(part.name)
        for item in dataclasses.fields(kind) if kind is not None else ():
            value = _default(item)
            if value is not dataclasses.MISSING and value is not None:
                found[f"{part.name}.{item.name}"] = list(value) if value == () else value
    return found


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _settled(draft: Draft) -> dict[str, Any]:
    """What the file means, defaults left out; as it stands where it cannot be used."""
    try:
        return settings_of(profiles.build(source(replace(draft, changes={}))))
    except ProfileError:
        return _flat(draft.text)


def _text_of(values: Mapping[str, Any]) -> str:
    document = tomlkit.document()
    for key, value in values.items():
        _put(document, key, value)
    return tomlkit.dumps(document)


# --------------------------------------------------------------------------- reading it


def source(draft: Draft) -> Source:
    """The document with the changes in it; a changed key counts as one that ``--set`` gave."""
    made = profiles.parse(draft.text, draft.path)
    for key, value in draft.changes.items():
        _put(made.document, key, value)
    made.overridden |= {k for k, v in draft.changes.items() if v is not None}
    return made


def text(draft: Draft) -> str:
    """The file as it would be saved."""
    return source(draft).text() if draft.changes else draft.text


def build(draft: Draft, *, local: bool = False) -> Profile:
    """The resolved profile.  Raises ProfileError."""
    return profiles.build(source(draft), local=local)


def findings(draft: Draft, *, local: bool = False) -> tuple[Finding, ...]:
    """Everything that keeps the draft from being used."""
    try:
        build(draft, local=local)
    except ProfileError as error:
        return error.findings
    return ()


def rows(draft: Draft, *, local: bool = False) -> tuple[Row, ...]:
    """Every setting in the order of its section, then what the file holds that is none."""
    wrong: dict[str, list[Finding]] = {}
    for finding in findings(draft, local=local):
        wrong.setdefault(finding.key, []).append(finding)
    now = _flat(tomlkit.dumps(source(draft).document))
    was = _flat(draft.text) if draft.on_disk else draft.against
    made = []
    for setting in SETTINGS:
        key = setting.key
        found = tuple(wrong.pop(key, ()))
        made.append(Row(key, setting, now.get(key), was.get(key), found, draft.against_name))
    for key in [key for key in now if key not in BY_KEY]:
        found = tuple(wrong.get(key, ()))
        made.append(Row(key, None, now[key], was.get(key, now[key]), found))
    return tuple(made)


def changed(draft: Draft) -> tuple[str, ...]:
    """The keys whose value differs from the file's."""
    was = _flat(draft.text)
    return tuple(k for k, v in draft.changes.items() if not _same(v, was.get(k)))


def _flat(toml: str) -> dict[str, Any]:
    """Values by dotted key; what is no section of ours stands whole under its own name."""
    found: dict[str, Any] = {}
    for section, table in tomlkit.parse(toml).unwrap().items():
        if isinstance(table, dict) and section in SECTIONS:
            found |= {f"{section}.{name}": value for name, value in table.items()}
        else:
            found[section] = table
    return found


def _same(one: Any, other: Any) -> bool:
    """Equal, and alike to TOML: 1 is not true, 1.0 is not 1."""
    return type(one) is type(other) and bool(one == other)


# --------------------------------------------------------------------------- changing it


def typed(setting: Setting, words: str) -> tuple[Any, list[Fault]]:
    """(value, what is wrong with it) of a text that stands in a setting's field.

    Plain texts need no quotes; lists and tables are TOML, ``[2, 15]`` and ``{ A = "b" }``.  An
    empty field leaves the setting out: None.
    """
    if not words.strip():
        missing = [Fault("is missing", f"write one, such as {setting.example}")]
        return None, missing if setting.required else []
    value = _value(setting, words)
    return value, check(setting, value)


def _value(setting: Setting, words: str) -> Any:
    stripped = words.strip()
    quoted = len(stripped) > 1 and stripped[0] in "\"'" and stripped[-1] == stripped[0]
    if quoted or setting.kind in ("texts", "env"):
        try:
            return tomlkit.parse(f"x = {stripped}\n").unwrap()["x"]
        except (TOMLKitError, ValueError):
            if setting.kind == "env":
                return stripped  # check says that it is no table
    # a path may end with a space, a pasted one hardly ever means to
    return from_text(setting, stripped)


def shown(value: Any) -> str:
    """A value as it stands in a field: what ``typed`` takes back."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _plain(value) else _toml(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{k} = {_toml(v)}" for k, v in value.items())
        return "{ " + inner + " }" if inner else "{ }"
    return str(value)


def _toml(value: Any) -> str:
    return tomlkit.item(value).as_string() if isinstance(value, str) else shown(value)


def _plain(value: str) -> bool:
    """Whether a text can stand without quotes and still be read as itself."""
    return (
        bool(value)
        and value == value.strip()
        and not value.startswith(('"', "'"))
        and value.isprintable()
    )


def put(draft: Draft, key: str, value: Any) -> Draft:
    """With another value; None leaves the key out.  A value as in the file is no change."""
    changes = {k: v for k, v in draft.changes.items() if k != key}
    if BY_KEY.get(key) is not None and BY_KEY[key].takes_all and value == ALL:
        value = None
    if not _same(value, _flat(draft.text).get(key)):
        changes[key] = value
    return replace(draft, changes=changes)


def revert(draft: Draft, key: str) -> Draft:
    """As the file, or the profile that the draft is compared with, has it."""
    return put(draft, key, (_flat(draft.text) if draft.on_disk else draft.against).get(key))


def with_changes(draft: Draft, changes: Mapping[str, Any]) -> Draft:
    """With these changes, as far as the file does not hold them already."""
    was = _flat(draft.text)
    kept = {k: v for k, v in changes.items() if not _same(v, was.get(k))}
    return replace(draft, changes=kept)


def onto(draft: Draft, new_text: str) -> Draft:
    """The same changes on top of another text of the file.  Raises ProfileError."""
    profiles.parse(new_text, draft.path)
    return with_changes(replace(draft, text=new_text, on_disk=True), draft.changes)


def stepped(setting: Setting, value: Any, step: int) -> Any:
    """The next choice, or the other of true and false; from no value, the first that is not
    the default."""
    choices: tuple[Any, ...] = setting.choices if setting.kind == "choice" else (False, True)
    at = choices.index(value) if value in choices else 0
    return choices[(at + step) % len(choices)]


def as_sets(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Changes as they would stand behind ``--set``; one left out says so."""
    return tuple(f"{k} left out" if v is None else f"{k}={shown(v)}" for k, v in changes.items())


def _put(document: Any, key: str, value: Any) -> None:
    """Set or remove one key.  A trailing comment of a value stays behind the new one."""
    section, dot, name = key.partition(".")
    if not dot:
        if value is None:
            document.pop(section, None)
        return
    table = document.get(section)
    if value is None:
        if isinstance(table, Mapping):
            table.pop(name, None)  # type: ignore[attr-defined]
        return
    if not isinstance(table, Mapping):
        document.pop(section, None)
        document[section] = table = tomlkit.table()
    item = _item(value, table.get(name))
    if name in table or not hasattr(table, "value"):
        table[name] = item
    else:
        _append(table, name, item)


def _append(table: Any, name: str, item: Any) -> None:
    """Behind the section's last key, before the empty lines that part it from the next one."""
    body = table.value.body
    at = len(body)
    while at and isinstance(body[at - 1][1], Whitespace):
        at -= 1
    blank = "".join(entry[1].s for entry in body[at:])
    del body[at:]
    table.append(name, item)
    if blank:
        table.add(tomlkit.ws(blank))


def _item(value: Any, before: Any) -> Any:
    if isinstance(value, dict):
        made: Any = tomlkit.inline_table()
        made.update(value)
    else:
        made = tomlkit.item(value)
    trivia = getattr(before, "trivia", None)
    if trivia is not None and trivia.comment and not isinstance(before, Mapping):
        made.comment(trivia.comment.lstrip("# "))
        made.trivia.comment_ws = trivia.comment_ws
    return made
