"""A run's stages over an engine that does as a test says: what it may not do, and what is left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle3_agent.protocol.events import Note, Plan, Progress, Stage, Throughput
from eagle3_agent.protocol.values import Profile
from eagle3_agent.runs import RunFolder
from eagle3_agent.worker import engines, extras, manifest, run
from eagle3_agent.worker.engines.base import Captured, Emit, Loaded, Output, Sample, Watch
from eagle3_agent.worker.writing.formats import Sink
from eagle3_agent.worker.writing.item import Item, States
from eagle3_agent.worker.writing.ledger import Ledger, Measured, Rejected
from eagle3_agent.worker.writing.pool import Pool
from support import tiny

Extract = Callable[["Engine", Iterator[Sample], Output, Watch], None]


def save(item: Item, output: Output, file: Sink) -> None:
    """A file whose bytes follow from the sample alone."""
    file.write(json.dumps([item.index, list(item.input_ids), output.metadata]).encode())


def write_all(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
    pool = engine.pool = Pool(output, save)
    for sample in samples:
        watch()
        pool.submit(engine.item(sample))
    pool.tell(Measured(10, 2, 1.0, 0.5, 0.25, 0.125, 3.0, 0.0, 0.75, pool.peak))
    pool.finish(watch)


class Engine:
    """Two layers of hidden size 8 in bfloat16."""

    name = "scripted"

    def __init__(self, extract: Extract = write_all) -> None:
        self._extract = extract
        self.pool: Pool | None = None
        self.closed = 0
        self.output: Output | None = None

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        return Loaded("bfloat16", 8, 4, 100, "nothing", "a script")

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        for sample in samples:
            state = SimpleNamespace(shape=(len(sample.input_ids), 8), dtype="torch.bfloat16")
            yield Captured(sample, (state, state))

    def extract(self, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        self.output = output
        self._extract(self, samples, output, watch)

    def close(self) -> None:
        self.closed += 1
        if self.pool is not None:
            self.pool.abort()

    @staticmethod
    def item(sample: Sample) -> Item:
        tokens = len(sample.input_ids)
        states = States(memoryview(bytes(tokens * 2 * 8 * 2)), (2, tokens, 8), "bfloat16")
        done: Callable[[], None] = lambda: None  # noqa: E731
        return Item(sample.index, sample.input_ids, sample.loss_mask, states, done, done)


class Work:
    """A model's config, rows, and runs over them in this process."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = root, monkeypatch
        model = root / "model"
        model.mkdir()
        config = {"hidden_size": 8, "num_hidden_layers": 4, "vocab_size": 500, "dtype": "bfloat16"}
        (model / "config.json").write_text(json.dumps(config))
        (model / "model.safetensors").write_bytes(b"weights")
        self.data = tiny.write_jsonl(root / "data.jsonl", tiny.rows(12))
        self.output = root / "out"
        self.profile = tiny.profile(
            Path("/no/python"), model, self.data, self.output, layers=(1, 3)
        )
        # what lies beside the samples is made by torch, which this interpreter need not have
        monkeypatch.setattr(extras, "write", lambda *given: ["extras are missing"])
        # no trap of this process: it is pytest's
        monkeypatch.setattr("signal.signal", lambda number, handler: None)

    def go(
        self, name: str, engine: Engine, profile: Profile | None = None
    ) -> tuple[int, RunFolder]:
        folder = tiny.make_run(self.root / name, profile or self.profile)
        self._patch.setattr(engines, "create", lambda name: engine)
        return run.main(folder.path), folder

    def failure(self, name: str, engine: Engine, profile: Profile | None = None) -> str:
        status, folder = self.go(name, engine, profile)
        assert status == 1
        assert not tiny.finished(folder)
        error = tiny.failure(folder).error
        return f"{error.type}: {error.message}"

    def names(self) -> set[str]:
        return {p.name for p in self.output.iterdir()}

    def samples(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in self.output.glob("data_*.pt")}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(tmp_path, monkeypatch)


def _notes(folder: RunFolder) -> list[str]:
    return [e.text for e in tiny.events(folder) if isinstance(e, Note)]


def test_a_run_writes_all_and_says_how(work: Work) -> None:
    engine = Engine()
    status, folder = work.go("0001", engine)
    assert status == 0
    assert tiny.finished(folder)
    assert len(work.samples()) == 12
    assert engine.output is not None
    assert engine.output.metadata["layers"] == "[1, 3]"
    assert engine.output.metadata["dtype"] == "bfloat16"
    assert set(engine.output.metadata) == {
        "layers", "convention", "model_fingerprint", "data_fingerprint", "dtype"
    }  # fmt: skip
    longest = max(len(row["input_ids"]) for row in tiny.rows(12)) * 2 * 8 * 2
    assert engine.output.buffer_bytes >= 2 * longest
    assert any(f"{engine.output.threads} writers; at most" in n for n in _notes(folder))
    assert "extras are missing" in _notes(folder)
    (figures,) = [e for e in tiny.events(folder) if isinstance(e, Throughput)]
    assert (figures.tokens, figures.threads) == (10, engine.output.threads)
    assert figures.buffer_limit == engine.output.buffer_bytes


def test_the_profile_s_bounds_are_the_engine_s(work: Work) -> None:
    asked = replace(work.profile.output, writer_threads=3, buffer_bytes=12345)
    engine = Engine()
    assert work.go("0001", engine, replace(work.profile, output=asked))[0] == 0
    assert engine.output is not None
    assert (engine.output.threads, engine.output.buffer_bytes) == (3, 12345)


def _twice(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
    write_all(engine, iter([*samples][:1]), output, watch)
    again = tiny.rows(1)[0]
    write_all(engine, iter([Sample(0, again["input_ids"], again["loss_mask"])]), output, watch)


def _unasked(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
    Ledger(Path(output.ledger)).append(Rejected(99, "why"))
    write_all(engine, samples, output, watch)


def _forgets(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
    write_all(engine, (s for s in samples if s.index not in (4, 7)), output, watch)


def _stops(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
    write_all(engine, iter([next(samples), next(samples)]), output, watch)


@pytest.mark.parametrize(
    ("extract", "text"),
    [
        (_twice, "engine scripted returned sample 0 twice or unasked"),
        (_unasked, "engine scripted returned sample 99 twice or unasked"),
        (_forgets, "engine scripted returned nothing for 2 samples, the first is 4"),
        (_stops, "engine scripted stopped before sample 2"),
    ],
)
def test_every_sample_is_answered_exactly_once(work: Work, extract: Extract, text: str) -> None:
    engine = Engine(extract)
    assert work.failure("0001", engine) == f"CaptureError: {text}: a fault of the engine"
    assert engine.closed


def test_an_error_of_the_disk_is_named_whatever_it_did_to_the_engine(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(item: Item, output: Output, file: Sink) -> None:
        raise OSError(28, os.strerror(28))

    def extract(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        pool = engine.pool = Pool(output, full)
        try:
            for sample in samples:
                pool.submit(engine.item(sample))
            pool.finish()
        except Exception as error:
            raise RuntimeError("cancelled") from error  # as a library of processes has it

    tokens = sum(len(row["input_ids"]) for row in tiny.rows(12))
    assert work.failure("0001", Engine(extract)) == (
        f"OutputError: no space left on {work.output}: free some, then resume the run; "
        f"{tokens * 32 / 2**30:.1f} GiB are still to be written"
    )


def test_an_engine_that_only_watches_learns_of_a_full_disk(work: Work) -> None:
    looks = 0

    def full(item: Item, output: Output, file: Sink) -> None:
        raise OSError(28, os.strerror(28))

    def extract(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        pool = engine.pool = Pool(output, full)
        pool.submit(engine.item(next(samples)))
        nonlocal looks
        while looks < 10_000_000:
            looks += 1
            watch()

    text = work.failure("0001", Engine(extract))
    assert text.startswith(f"OutputError: no space left on {work.output}")
    assert looks < 10_000_000


def test_a_full_disk_under_the_run_s_own_folder_is_named_too(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(ledger: Ledger, line: object) -> None:
        raise OSError(28, os.strerror(28), "/state/0001/samples.jsonl")

    monkeypatch.setattr(Ledger, "append", full)
    text = work.failure("0001", Engine())
    assert text.startswith("OutputError: no space left on /state/0001/samples.jsonl: free some")


def test_an_engine_s_own_error_stays_the_cause(work: Work) -> None:
    def extract(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        next(samples)
        raise ValueError("no such kernel")

    engine = Engine(extract)
    assert work.failure("0001", engine) == "ValueError: no such kernel"
    assert engine.closed


def test_half_written_files_of_a_process_that_died_are_removed(work: Work) -> None:
    def extract(engine: Engine, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        for name in ("data_1.pt", "data_2.pt"):
            (Path(output.folder) / manifest.partial_name(name, 99999)).write_bytes(b"half")
        (Path(output.folder) / ".mine.partial").write_bytes(b"x")
        raise RuntimeError("cancelled")  # rank 0 was killed

    work.failure("0001", Engine(extract))
    assert work.names() == {"eagle3.json", ".mine.partial"}


# ------------------------------------------------------------------ resuming


def _kept(folder: RunFolder) -> int:
    (planned,) = [e for e in tiny.events(folder) if isinstance(e, Plan)]
    return planned.reused


def test_holes_truncated_and_foreign_files_are_found_and_made_again(work: Work) -> None:
    assert work.go("0001", Engine())[0] == 0
    whole = work.samples()
    out = work.output
    (out / "data_0.pt").unlink()
    (out / "data_1.pt").write_bytes(whole["data_1.pt"][:-1])
    (out / "data_2.pt").write_bytes(whole["data_2.pt"][:-1] + b"?")
    (out / "data_3.pt").write_bytes(b"")
    (out / "data_77.pt").write_bytes(b"whose?")
    (out / "hs_1.safetensors").write_bytes(b"whose?")
    (out / "data_1.pt.aside").write_bytes(b"older")
    lines = (out / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (out / "manifest.jsonl").write_bytes(b"".join(ln for ln in lines if b'"index":5,' not in ln))

    status, folder = work.go("0002", Engine())

    assert status == 0
    assert _kept(folder) == 12 - 5
    assert tiny.progress(folder).done == 12
    assert work.samples() == whole
    entries = manifest.entries(out)
    assert sorted(entries) == list(range(12))
    assert [manifest.intact(out, entry) for entry in entries.values()] == [""] * 12
    # nothing is lost without a word
    assert (out / "data_1.pt.aside").read_bytes() == b"older"
    assert (out / "data_1.pt.aside-2").read_bytes() == whole["data_1.pt"][:-1]
    assert (out / "data_2.pt.aside").read_bytes() == whole["data_2.pt"][:-1] + b"?"
    assert (out / "data_5.pt.aside").read_bytes() == whole["data_5.pt"]
    assert (out / "data_77.pt.aside").read_bytes() == b"whose?"
    assert (out / "hs_1.safetensors.aside").read_bytes() == b"whose?"
    told = " ".join(_notes(folder))
    for text in (
        "data_0.pt (missing)",
        "data_2.pt (its checksum differs)",
        "data_3.pt (0 bytes, the manifest says",
        "data_1.pt -> data_1.pt.aside-2",
        "data_77.pt -> data_77.pt.aside",
        "kept 7 samples",
    ):
        assert text in told


def test_a_run_with_nothing_to_do_tells_the_true_sums_and_loads_nothing(work: Work) -> None:
    assert work.go("0001", Engine())[0] == 0
    whole = work.samples()
    engine = Engine()
    status, folder = work.go("0002", engine)
    assert status == 0
    assert engine.output is None
    last = tiny.progress(folder)
    assert (last.done, last.total, last.skipped, last.tokens, last.bytes) == (12, 12, 0, 0, 0)
    assert last.tokens_per_second is None
    assert last.eta is None
    tokens = sum(len(row["input_ids"]) for row in tiny.rows(12))
    size = sum(map(len, whole.values())) / 2**30
    (told,) = [n for n in _notes(folder) if n.startswith("kept")]
    assert told.startswith(
        f"kept 12 samples of earlier attempts ({tokens} tokens, {size:.2f} GiB), read at "
    )
    stages = [(e.name, e.status) for e in tiny.events(folder) if isinstance(e, Stage)]
    assert [name for name, status in stages if status == "done"] == ["load", "write", "done"]
    assert work.samples() == whole


def test_a_row_cut_at_another_length_is_made_again_in_place(work: Work) -> None:
    assert work.go("0001", Engine())[0] == 0
    cut = replace(work.profile, data=replace(work.profile.data, seq_length=30))
    status, folder = work.go("0002", Engine(), cut)
    assert status == 0
    longer = sum(len(row["input_ids"]) > 30 for row in tiny.rows(12))
    assert 0 < longer < 12
    assert _kept(folder) == 12 - longer
    assert not [name for name in work.names() if "aside" in name]
    assert any(f"{longer} samples are made again, since their rows" in n for n in _notes(folder))
    assert [e.tokens <= 30 for e in manifest.entries(work.output).values()] == [True] * 12


def test_fewer_samples_leave_the_others_alone(work: Work) -> None:
    assert work.go("0001", Engine())[0] == 0
    whole = work.samples()
    (work.output / "data_3.pt").unlink()
    few = replace(work.profile, data=replace(work.profile.data, max_samples=5))
    status, folder = work.go("0002", Engine(), few)
    assert status == 0
    assert (tiny.progress(folder).done, tiny.progress(folder).total) == (5, 5)
    assert work.samples() == whole


@pytest.mark.parametrize("what", ["model", "layers", "data", "dtype"])
def test_another_model_or_data_is_refused_with_the_difference(work: Work, what: str) -> None:
    assert work.go("0001", Engine())[0] == 0
    before = {p.name: p.read_bytes() for p in work.output.iterdir()}
    profile = work.profile
    if what == "model":
        (Path(profile.model.path) / "model.safetensors").write_bytes(b"other weights")
        difference = "model (before there, changed since asked)"
    elif what == "layers":
        profile = replace(profile, capture=replace(profile.capture, layers=(3, 1)))
        difference = "layers ([1, 3] there, [3, 1] asked)"
    elif what == "data":
        tiny.write_jsonl(work.data, tiny.rows(13))
        difference = "data (before there, changed since asked)"
    else:
        profile = replace(profile, model=replace(profile.model, dtype="float16"))
        difference = "dtype (bfloat16 there, float16 asked)"
    engine = Engine()
    assert work.failure("0002", engine, profile) == (
        f"OutputError: {work.output} holds samples of run 0001 that differ in {difference}: "
        "choose another output.dir or clear that run"
    )
    assert engine.output is None
    assert {p.name: p.read_bytes() for p in work.output.iterdir()} == before


def test_a_large_check_tells_how_far_it_is(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    assert work.go("0001", Engine())[0] == 0
    clock = iter(range(0, 10_000, 11))
    monkeypatch.setattr("eagle3_agent.worker.resume.check.__defaults__", (lambda: next(clock),))
    _, folder = work.go("0002", Engine())
    done = [e.done for e in tiny.events(folder) if isinstance(e, Progress)]
    assert done[:12] == list(range(1, 13))
    assert [n for n in _notes(folder) if n.startswith("checked ") and "s left" in n]
