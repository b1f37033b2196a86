"""Check ``data``: readable, not empty, rows that the worker can use."""

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
    usable = seen.tally.rows - seen.tally.broken
    if seen.kind == "JSONL" and usable == 0:
        return _nothing_usable(seen, path)
    doubts = _doubts(seen, facts, profile)
    if not doubts:
        return CHECK.verdict("pass", _summary(seen))
    return CHECK.verdict(
        "warn",
        "\n".join([_summary(seen), *(what for what, _ in doubts)]),
        "Rows that cannot be used are skipped and counted; the run then ends incomplete.",
        " ".join(todo for _, todo in doubts),
    )


def _summary(seen: DataFacts) -> str:
    about = "" if seen.tokens_exact else "about "
    tokens = f"{about}{number(seen.tokens)} tokens" if seen.tokens is not None else "tokens unknown"
    basis = f" ({seen.tokens_from})" if seen.tokens_from else ""
    part = "" if seen.whole else f"; read the first {size(seen.looked_at)} of {size(seen.size)}"
    about_rows = "" if seen.whole else "about "
    return f"{seen.kind}, {about_rows}{plural(seen.rows, 'sample')}, {tokens}{basis}{part}"


def _nothing_usable(seen: DataFacts, path: str) -> Verdict:
    tally = seen.tally
    if not tally.rows:
        saw = f"{path} holds no row: only blank lines in {size(seen.looked_at)}"
    else:
        saw = (
            f"{path}: none of {plural(tally.rows, 'row')} can be used; "
            f"{tally.broken_at}: {show(tally.broken_why)}"
        )
    return CHECK.verdict("block", saw, "There is nothing to extract from.", _CONVERT)


def _doubts(seen: DataFacts, facts: Facts, profile: Profile) -> list[tuple[str, str]]:
    """(what, what to do) for everything that will cost samples."""
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
    model = facts.maybe(MODEL)
    if model is not None and model.vocab is not None and tally.largest_id >= model.vocab:
        found.append(
            (
                f"token id {tally.largest_id} at {tally.largest_id_at} is outside the model's "
                f"vocabulary of {number(model.vocab)}",
                "Prepare the data with this model's tokenizer.",
            )
        )
    if profile.data.seq_length > profile.model.max_model_len and (
        tally.longest > profile.model.max_model_len or seen.kind != "JSONL"
    ):
        found.append(
            (
                f"data.seq_length {profile.data.seq_length} is more than model.max_model_len "
                f"{profile.model.max_model_len}: longer samples are skipped",
                "Set both to the same number.",
            )
        )
    found += _too_long(tally, profile)
    return found


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
