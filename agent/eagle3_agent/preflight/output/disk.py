"""Check ``disk``: room for the predicted output, in bytes and in file entries."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.data.data_facts import PROBE as DATA
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.text import number, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .output_facts import PROBE as OUTPUT
from .output_facts import OutputFacts

#: The rest of the output: headers, manifest, the file that is being written.
MARGIN = 0.05
#: Less than this to spare is worth a look.
COMFORT = 0.10

#: input_ids and loss_mask, int64 each.
_TOKEN_BYTES = 16
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Prediction:
    """Bytes of the whole output, and its arithmetic in words."""

    bytes: int
    files: int
    sum: str
    exact: bool


def predict(facts: Facts, profile: Profile) -> Prediction | None:
    """tokens x layers x hidden x bytes of the dtype; None when one of them is not known."""
    data, model = facts.maybe(DATA), facts.maybe(MODEL)
    if data is None or model is None or data.tokens is None or data.problem:
        return None
    if model.hidden is None:
        return None
    dtype = profile.model.dtype if profile.model.dtype != "auto" else model.dtype
    item = _ITEM_BYTES.get(dtype, 2)
    layers = len(profile.capture.layers)
    count = data.tokens * (layers * model.hidden * item + _TOKEN_BYTES)
    about = "" if data.tokens_exact else "about "
    text = (
        f"{about}{number(data.tokens)} tokens × {layers} layers × {number(model.hidden)} × "
        f"{item} bytes"
    )
    return Prediction(count, data.rows, text, data.tokens_exact)


def still_to_write(facts: Facts, profile: Profile) -> int | None:
    """Bytes of the predicted output that are not in the folder yet; None when not predicted."""
    plan, seen = predict(facts, profile), facts.maybe(OUTPUT)
    if plan is None:
        return None
    return max(0, plan.bytes - (seen.inside.kept_bytes if seen is not None else 0))


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(OUTPUT)
    if seen.free is None:
        return CHECK.verdict(
            "warn",
            f"the free space at {show(seen.place or seen.path, 200)} is not known",
            "A disk that fills up ends the run after hours.",
            "Mend the check on the output folder first, or look with df.",
        )
    free, inodes, room = _room(seen)
    plan = predict(facts, profile)
    if plan is None:
        return CHECK.verdict(
            "warn",
            f"the size of the output cannot be predicted; {room}",
            "It takes the number of tokens and the model's hidden size.",
            "Mend the checks on data and model first.",
        )
    there = seen.inside.kept_bytes
    rest = max(0, plan.bytes - there)
    about = "" if seen.inside.exact else "about "
    kept = f", {about}{size(there)} there already" if there else ""
    saw = f"predicted {size(plan.bytes)} ({plan.sum}){kept}; {room}"
    return _judge_room(saw, rest, free, inodes, plan.files - seen.inside.kept)


def _room(seen: OutputFacts) -> tuple[int, int | None, str]:
    """Bytes and file entries that are left, by the filesystem or by a quota; and in words."""
    free, inodes = seen.free or 0, seen.inodes
    words = f"{size(free)} free"
    for quota in seen.quotas:
        if quota.left is not None and quota.left < free:
            free = quota.left
            words = f"{size(free)} left of the {quota.kind} quota of {size(quota.limit or 0)}"
        if quota.files_left is not None and (inodes is None or quota.files_left < inodes):
            inodes = quota.files_left
    return free, inodes, words


def _judge_room(saw: str, rest: int, free: int, inodes: int | None, files: int) -> Verdict:
    where = "Free some space, lower data.max_samples, or choose an output.dir on another disk."
    if rest > free:
        return CHECK.verdict(
            "block",
            f"{saw}: {size(rest - free)} too little",
            "The disk would be full before the end.",
            where,
        )
    if inodes is not None and inodes < files:
        return CHECK.verdict(
            "block",
            f"{saw}; {plural(inodes, 'file entry', 'file entries')} free, "
            f"{plural(files, 'file')} to write",
            "A filesystem without free inodes refuses new files although it has space.",
            "Remove small files there, or choose an output.dir on another disk.",
        )
    if rest * (1 + COMFORT) > free:
        spare = 100 * (free - rest) / rest
        enough = "within" if free < rest * (1 + MARGIN) else "little more than"
        return CHECK.verdict(
            "warn",
            f"{saw}: {spare:.0f} % to spare, {enough} the margin of {100 * MARGIN:.0f} %",
            "Headers, the manifest and whatever else writes to this disk take some of it.",
            where,
        )
    return CHECK.verdict("pass", saw)


CHECK = Check(
    id="disk",
    title="Output disk large enough",
    needs=(OUTPUT,),
    wants=(DATA, MODEL),
    judge=judge,
    silence="warn",
    silence_why="A disk that fills up ends the run after hours.",
    silence_todo="Look with df at the mount that holds the output folder.",
)
