"""Check ``tokenizer``: there, whole, of this model's vocabulary, with a chat template if needed.

Rows of ``input_ids`` need no tokenizer: the worker loads one for conversations alone.
"""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.text import listed, number, show
from eagle3_agent.protocol.values import Profile, Status, Verdict

from .model_facts import PROBE as MODEL
from .model_facts import ModelFacts
from .tokenizer_facts import FILES, PROBE, TokenizerFacts

_WHY = "Conversations are turned into tokens by the model's own tokenizer."
_COPY = "Copy the tokenizer's files again, or give input_ids."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    model = facts.maybe(MODEL)
    if seen.folder_problem or (model is not None and model.problem):
        return CHECK.verdict("skip", "the model folder was not read")
    data = facts.maybe(DATA)
    talks = data.talks if data is not None else None
    if talks is False:
        return CHECK.verdict("pass", f"not needed: the data holds token ids ({_files(seen)})")
    wrong: Status = "block" if talks else "warn"
    basis = "" if talks else "; whether the data needs it is not known"
    if seen.problems:
        saw = "; ".join(show(p, 200) for p in seen.problems[:3])
        return CHECK.verdict(wrong, saw + basis, _WHY, _COPY)
    if not seen.files:
        return CHECK.verdict(
            wrong,
            f"no tokenizer: none of {', '.join(FILES)} is in the model folder{basis}",
            _WHY,
            "Copy the tokenizer's files too, unless the data holds input_ids.",
        )
    if not seen.template:
        return CHECK.verdict(
            wrong,
            f"{_files(seen)}, and no chat template{basis}",
            "The worker makes conversations into tokens by the chat template, and refuses to "
            "guess one.",
            "Copy chat_template.jinja or a tokenizer_config.json with chat_template; a base "
            "model has none: give input_ids.",
        )
    return _vocabulary(seen, model)


def _files(seen: TokenizerFacts) -> str:
    return listed(list(seen.files), 2) or "no tokenizer file"


def _vocabulary(seen: TokenizerFacts, model: ModelFacts | None) -> Verdict:
    count = "" if seen.tokens is None else f", {number(seen.tokens)} tokens"
    marks = (
        "marks the answers itself"
        if seen.marked
        else "has no generation marks, so answers are found by prefix"
    )
    saw = f"{_files(seen)}{count}; {seen.template} {marks}"
    doubts = _doubts(seen, model)
    if not doubts:
        if seen.tokens is None:
            saw += "; the vocabulary is not read here"
        return CHECK.verdict("pass", saw)
    return CHECK.verdict(
        "warn",
        "\n".join([saw, *doubts]),
        "An id that has no row in the embedding is an error on one GPU, and silently another "
        "row's on several.",
        "Copy tokenizer and config from the same checkpoint.",
    )


def _doubts(seen: TokenizerFacts, model: ModelFacts | None) -> list[str]:
    found = [f"{name} {show(repr(text), 60)} is not in the vocabulary" for name, text in
             seen.special.items()]  # fmt: skip
    if model is None or model.vocab is None:
        return found
    rows = min([model.vocab, *model.embedding[:1]])
    if seen.largest_id >= rows:
        found.append(
            f"token {show(repr(seen.largest_token), 60)} has the id {number(seen.largest_id)}, "
            f"the model {number(rows)} rows"
        )
    if seen.tokens is not None and 10 * seen.tokens < 9 * model.vocab:
        found.append(
            f"{number(seen.tokens)} tokens for a vocabulary of {number(model.vocab)}: "
            "this may be another model's tokenizer"
        )
    for name, value in model.special_ids.items():
        if value >= rows:
            found.append(f"config.json's {show(name, 40)} {value} is not below {number(rows)}")
    return found


CHECK = Check(
    id="tokenizer",
    title="Tokenizer and template present",
    needs=(PROBE,),
    wants=(MODEL, DATA),
    judge=judge,
    silence="warn",
    silence_why=_WHY,
    silence_todo="Look at the mount that holds the model (ls, then mount and dmesg).",
)
