"""The whole matrix: ``python -m support.vllm_table [MODEL@STACK ...]`` measures and writes it down.

Figures are kept in docs/extraction.json, one after the other as they come; the table in
docs/extraction.md is made from all that are kept.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from eagle3_console import demo

from . import vllm_env
from . import vllm_matrix as matrix
from .vllm_matrix import HINDERED, MODELS, STACKS, Case, Found

JSON = vllm_env.ROOT / "docs" / "extraction.json"
PAGE = vllm_env.ROOT / "docs" / "extraction.md"
_BEGIN, _END = "<!-- matrix -->", "<!-- end of the matrix -->"

Figures = dict[Case, Found]


def main(wanted: Sequence[str]) -> int:
    """The exit status: 1 when a case is not as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), [_case(text) for text in wanted] or list(matrix.cases()))
    figures = kept()
    write(figures)
    print("\n".join(table(figures)))
    print(JSON.read_text())
    wrong = [case for case, found in figures.items() if not _right(case, found)]
    for case in wrong:
        print("not as it should be:", "@".join(case), figures[case], file=sys.stderr)
    return int(bool(wrong))


def run(folder: Path, wanted: Sequence[Case]) -> None:
    models = folder / "models"
    models.mkdir()
    matrix.make_models(models, demo.files().model)
    for number, group in enumerate(matrix.groups(wanted)):
        place = folder / str(number)
        place.mkdir()
        try:
            found = matrix.measure(group, models, place)
        except AssertionError as error:  # the process died: what it said is in the text
            found = {case: Found(failed=str(error)[-2000:]) for case in group}
        for case, figures in found.items():
            print("@".join(case), figures, file=sys.stderr, flush=True)
        keep({**kept(), **{case: _anywhere(figures) for case, figures in found.items()}})
        shutil.rmtree(place)


def _anywhere(found: Found) -> Found:
    """Without the path of the checkout in which it was measured."""
    return replace(found, failed=found.failed.replace(f"{vllm_env.ROOT}/", ""))


def _case(text: str) -> Case:
    name, stack = text.split("@")
    return name, stack


def _right(case: Case, found: Found) -> bool:
    if case in HINDERED:
        return bool(found.failed)
    return not found.failed and max(found.errors) <= MODELS[case[0]].tolerance


# --------------------------------------------------------------------------- figures


def kept() -> Figures:
    if not JSON.exists():
        return {}
    return {_case(text): Found(**body) for text, body in json.loads(JSON.read_text()).items()}


def keep(figures: Figures) -> None:
    known = [case for case in matrix.cases() if case in figures]
    body = {"@".join(case): asdict(figures[case]) for case in known}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in body.items()]
    JSON.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# --------------------------------------------------------------------------- the page


def write(figures: Figures) -> None:
    """Put the table between its marks; the rest of the page stays."""
    page = PAGE.read_text()
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    PAGE.write_text("\n".join([before + _BEGIN, *table(figures), _END + after]))


def table(figures: Figures) -> list[str]:
    return [*_worst(figures), "", *_layers(figures), "", *_hindered(figures)]


def _worst(figures: Figures) -> Iterator[str]:
    yield "| model | dtype | limit | " + " | ".join(s.title for s in STACKS.values()) + " |"
    yield "| --- " * (3 + len(STACKS)) + "|"
    for name, model in MODELS.items():
        cells = [
            _cell(figures.get((name, stack))) if stack in model.stacks else "-" for stack in STACKS
        ]
        yield f"| {model.title} | {model.dtype} | {model.tolerance:.0e} | {' | '.join(cells)} |"


def _cell(found: Found | None) -> str:
    if found is None:
        return "not measured"
    return "cannot" if found.failed else _figure(max(found.errors))


def _figure(error: float) -> str:
    return f"{error:.1e}" if error else "0"


def _layers(figures: Figures) -> Iterator[str]:
    yield "| model | stack | error after layer 0, 1, 2, ... up to the last |"
    yield "| --- | --- | --- |"
    for (name, stack), found in figures.items():
        if not found.failed:
            model, every = MODELS[name], ", ".join(map(_figure, found.errors))
            errors = every if any(found.errors) else "0 in every layer"
            yield f"| {model.title}, {model.dtype} | {STACKS[stack].title} | {errors} |"


def _hindered(figures: Figures) -> Iterator[str]:
    yield "| cannot | why | seen |"
    yield "| --- | --- | --- |"
    for case, found in figures.items():
        if found.failed:
            why = HINDERED.get(case, "")
            seen = " ".join(found.failed.split()).replace("|", "\\|")[:160]
            yield f"| {MODELS[case[0]].title}, {STACKS[case[1]].title} | {why} | {seen} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
