"""Check ``data``: readable, not empty, rows that the worker can use and that teach something."""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.text import number, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .data_facts import PROBE, DataFacts
from .tally import Tally

_CONVERT = (
    'A row is {"messages": [{"role": …, "content": …}]}, {"conversations": [{"from": …, '
    '"value": …}]} or {"input_ids": […], "loss_mask": […]}.'
)
_MASK = "Prepare the data again: its mask was made with another chat template, or cut off."
#: What is told of one row in so many, and only noted of fewer.
_MANY = 10


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    path = show(seen.path, 300)
    if seen.problem:
        return CHECK.verdict(
            "block",
            f"{path} {show(seen.problem, 300)}",
            "There is nothing to extract from.",
            show(seen.todo, 300) or "Set data.path to a file or saved dataset on this host.",
        )
    tally = seen.tally
    usable = tally.rows - tally.broken
    if usable == 0 and (seen.kind == "JSONL" or tally.rows):
        return _nothing_usable(seen, path)
    if tally.unlearned and tally.unlearned >= max(usable, 1):
        return CHECK.verdict(
            "block",
            f"{_summary(seen)}; no loss_mask marks a token"
            f"{'' if seen.whole else ' in any row that was looked at'}",
            "A draft model trained on it learns nothing.",
            _MASK,
        )
    doubts = _doubts(seen, facts, profile)
    saw = _summary(seen) + _noted(seen)
    if not doubts:
        return CHECK.verdict("pass", saw)
    return CHECK.verdict(
        "warn",
        "\n".join([saw, *(what for what, _ in doubts)]),
        "Rows that cannot be used are skipped and counted; the run then ends incomplete.",
        " ".join(dict.fromkeys(todo for _, todo in doubts)),
    )


def _summary(seen: DataFacts) -> str:
    about = "" if seen.tokens_exact else "about "
    tokens = f"{about}{number(seen.tokens)} tokens" if seen.tokens is not None else "tokens unknown"
    basis = f" ({seen.tokens_from})" if seen.tokens_from else ""
    about_rows = "" if seen.whole or seen.kind != "JSONL" else "about "
    return f"{seen.kind}, {about_rows}{plural(seen.rows, 'sample')}, {tokens}{basis}{_part(seen)}"


def _part(seen: DataFacts) -> str:
    """How much of it was looked at, when that is not all."""
    if seen.unseen:
        return f"; its rows were not looked at: {show(seen.unseen, 120)}"
    if seen.whole:
        return ""
    if seen.kind != "JSONL":
        rows = f"{number(seen.tally.rows)} of {number(seen.rows)} rows looked at"
        return f"; {rows}, spread evenly over the batches"
    where = f": its beginning and {seen.places} places spread evenly to its end"
    return f"; read {size(seen.looked_at)} of {size(seen.size)}{where if seen.places else ''}"


def _noted(seen: DataFacts) -> str:
    """What does no harm and explains a surprise later."""
    tally = seen.tally
    notes = list(seen.notes)
    if seen.masked is False or (tally.unmasked and tally.unmasked == tally.rows - tally.broken):
        notes.append("no loss_mask: every token is learned")
    for count, what in (
        (tally.unlearned, "with no token to learn"),
        (tally.asking, "ending without an answer"),
        (tally.hollow, "with an empty message"),
        (_repeats(seen), "the same as another"),
    ):
        if 0 < _MANY * count <= tally.rows:
            notes.append(f"{plural(count, 'row')} {what}")
    return "".join(f"; {note}" for note in notes)


def _nothing_usable(seen: DataFacts, path: str) -> Verdict:
    tally = seen.tally
    if not tally.rows:
        saw = f"{path} holds no row: only blank lines in {size(seen.looked_at)}"
    else:
        looked = "" if seen.whole else " that were looked at"
        saw = (
            f"{path}: none of {plural(tally.rows, 'row')}{looked} can be used; "
            f"{tally.broken_at}: {show(tally.broken_why)}"
        )
    return CHECK.verdict("block", saw, "There is nothing to extract from.", _CONVERT)


def _doubts(seen: DataFacts, facts: Facts, profile: Profile) -> list[tuple[str, str]]:
    """(what, what to do) for everything that will cost samples or teaches nothing."""
    tally = seen.tally
    found = []
    if tally.broken:
        found.append(
            (
                f"{number(tally.broken)} of {plural(tally.rows, 'row')} cannot be used, "
                f"the first at {tally.broken_at}: {show(tally.broken_why)}",
                "Mend or remove those lines.",
            )
        )
    elif tally.broken_why:
        what = f"{tally.broken_at} cannot be used: {show(tally.broken_why)}"
        found.append((what, "Mend or remove those rows."))
    model = facts.maybe(MODEL)
    if model is not None and model.vocab is not None and tally.largest_id >= model.vocab:
        found.append(
            (
                f"token id {tally.largest_id} at {tally.largest_id_at} is outside the model's "
                f"vocabulary of {number(model.vocab)}",
                "Prepare the data with this model's tokenizer.",
            )
        )
    return [*found, *_over(seen, profile), *_too_long(tally, profile), *_doubtful(seen)]


def _over(seen: DataFacts, profile: Profile) -> list[tuple[str, str]]:
    """Rows that seq_length lets through and the model does not take."""
    asked, most = profile.data.seq_length, profile.model.max_model_len
    told = seen.kind == "JSONL" or bool(seen.tally.rows)
    if asked <= most or (told and seen.tally.longest <= most):
        return []
    count = f", {number(seen.tally.over)} of those looked at" if seen.tally.over else ""
    what = (
        f"data.seq_length {asked} is more than model.max_model_len {most}: "
        f"longer samples are skipped{count}"
    )
    return [(what, "Set both to the same number.")]


def _too_long(tally: Tally, profile: Profile) -> list[tuple[str, str]]:
    """Cutting is worth a word where it is the rule; every row that is skipped is."""
    skip = profile.data.too_long == "skip"
    if not tally.cut or not (skip or 2 * tally.cut > tally.rows - tally.broken):
        return []
    what = (
        f"{number(tally.cut)} of {plural(tally.rows, 'row')} are longer than data.seq_length "
        f"{profile.data.seq_length} and will be {'skipped' if skip else 'cut'} "
        f"(longest {number(tally.longest)})"
    )
    if skip:
        return [(what, "Raise data.seq_length, or set data.too_long to truncate.")]
    return [(what, "Raise data.seq_length if whole conversations are wanted.")]


def _repeats(seen: DataFacts) -> int:
    """Repeated rows; a handful in a file for trying things out is meant."""
    return seen.repeated if seen.repeated >= _MANY else 0


def _doubtful(seen: DataFacts) -> list[tuple[str, str]]:
    """What can be captured and is hardly meant: of one row in ten, or of a part of the rows."""
    tally = seen.tally
    found = []
    for count, what, todo in (
        (tally.unlearned, "have a loss_mask that marks no token", _MASK),
        (tally.asking, "end without an answer", "Cut the last turn off, or add the answer."),
        (tally.hollow, "hold an empty message", "Remove those turns, or the rows."),
        (_repeats(seen), "are the same as another row", "Remove the repeated rows: sort -u."),
    ):
        if count and _MANY * count > tally.rows:
            found.append((f"{number(count)} of {plural(tally.rows, 'row')} {what}", todo))
    if tally.conversations and tally.input_ids:
        what = f"{plural(tally.conversations, 'conversation')} and {plural(tally.input_ids, 'row')}"
        found.append((f"{what} of input_ids in one file", "Split it if that is not meant."))
    if 0 < tally.unmasked < tally.input_ids:
        what = f"{number(tally.unmasked)} of {plural(tally.input_ids, 'row')} have no loss_mask"
        found.append((f"{what}: all their tokens are learned", "Give every row a mask, or none."))
    return found


CHECK = Check(
    id="data",
    title="Training data readable",
    needs=(PROBE,),
    wants=(MODEL,),
    judge=judge,
    silence="block",
    silence_why="The worker reads the same files and would hang at the same place.",
    silence_todo="Look at the mount that holds the data (ls, then mount and dmesg).",
)
