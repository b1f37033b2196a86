"""What happened first, out of the output of many processes."""

from __future__ import annotations

from pathlib import Path

from eagle3_agent.causes import CauseFinder, of_log
from eagle3_agent.causes.loglines import Line, decode, parse, rank_of
from eagle3_agent.protocol.values import Cause, ErrorInfo

RECORDED = Path(__file__).parents[1] / "recorded"


def cause(text: str, told: ErrorInfo | None = None) -> Cause | None:
    finder = CauseFinder()
    finder.add(text.encode())
    return finder.cause(told)


def found(text: str, told: ErrorInfo | None = None) -> Cause:
    one = cause(text, told)
    assert one is not None
    return one


def worker(rank: int, text: str, level: str = "ERROR") -> str:
    prefix = (
        f"(Worker_TP{rank} pid={100 + rank}) {level} 11-30 12:00:00 [multiproc_executor.py:824] "
    )
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def engine(text: str) -> str:
    prefix = "(EngineCore_DP0 pid=99) ERROR 11-30 12:00:03 [core.py:946] "
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


OOM = """\
WorkerProc hit an exception.
Traceback (most recent call last):
  File "/env/vllm/v1/worker/gpu_worker.py", line 355, in determine_available_memory
    self.model_runner.profile_run()
  File "/env/torch/nn/modules/module.py", line 1776, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 3 has 2.1 GiB free."""
FAILED = """\
EngineCore failed to start.
Traceback (most recent call last):
  File "/env/vllm/v1/engine/core.py", line 937, in run_engine_core
    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)
RuntimeError: Worker failed with error 'CUDA out of memory', please check the stack trace above \
for the root cause"""
PARENT = """\
Traceback (most recent call last):
  File "/env/vllm/v1/engine/utils.py", line 933, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


# ------------------------------------------------------------------ one line


def test_prefixes_come_off_in_any_order() -> None:
    stamp = "INFO 11-30 10:10:21 [kernel_warmup.py:44] "
    text = f"(Worker_TP1 pid=7) (Worker_TP0 pid=6) {stamp}Skip"
    assert parse(text) == Line("Worker_TP0 pid=6", "INFO", "Skip", stamp, owed="Worker_TP1 pid=7")
    assert rank_of("Worker_TP3_EP3 pid=4") == 3
    assert parse("[rank3]:   File x").process == "rank3"
    assert parse("[rank3]:   File x").text == "  File x"
    assert parse("ERROR 11-30 12:00:00 [core.py:9]     indented").text == "    indented"
    assert parse("2026-11-30 12:00:00,123 - ERROR - vllm - no").level == "ERROR"
    assert parse("(VllmWorker rank=3 pid=12) x").process == "VllmWorker rank=3 pid=12"
    assert parse("") == Line("", "", "")
    assert parse("(not a process) x").text == "(not a process) x"


def test_ranks_are_read_from_names() -> None:
    assert rank_of("Worker_TP3 pid=9") == 3
    assert rank_of("VllmWorker rank=12 pid=3") == 12
    assert rank_of("Worker_DP0_TP5 pid=9") == 5
    assert rank_of("rank7") == 7
    assert rank_of("EngineCore_DP0 pid=4") is None


def test_a_line_is_read_as_a_terminal_would_show_it() -> None:
    assert decode(b"\x1b[1;36m(Worker pid=1)\x1b[0;0m x\r") == "(Worker pid=1) x"
    assert decode(b"10 %\r20 %\r30 %\r\n") == "30 %"
    assert decode(b"\xff\x1b]52;c;eA==\x07y") == "\N{REPLACEMENT CHARACTER}y"


# ------------------------------------------------------------------ which one is first


def test_the_rank_that_failed_is_named_and_what_followed_is_folded() -> None:
    one = found(worker(3, OOM) + engine(FAILED) + PARENT)
    assert one.rank == 3
    assert one.sentence.startswith("rank 3: OutOfMemoryError: CUDA out of memory")
    assert one.where is not None
    assert (one.where.file, one.where.line) == ("/env/vllm/v1/worker/gpu_worker.py", 355)
    assert one.where.source == "self.model_runner.profile_run()"
    assert one.kind == "cuda-oom"
    assert [f.text.split(":")[0] for f in one.followed] == ["RuntimeError", "RuntimeError"]
    assert one.line == 1


def test_interleaved_tracebacks_are_put_together_by_process() -> None:
    lines = [worker(rank, OOM).splitlines() for rank in range(8)]
    mixed = "".join(f"{line}\n" for group in zip(*lines, strict=True) for line in group)
    one = found(mixed + engine(FAILED))
    assert one.ranks == tuple(range(8))
    assert one.where is not None
    assert one.where.line == 355
    assert one.sentence.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7: OutOfMemoryError")


def test_the_parents_words_may_come_first() -> None:
    one = found(engine(FAILED) + PARENT + worker(5, OOM))
    assert one.rank == 5


def test_an_error_that_work_went_on_after_is_not_the_cause() -> None:
    early = worker(0, OOM.replace("OutOfMemoryError: CUDA out of memory", "ValueError: a plugin"))
    work = "".join(worker(0, f"step {i}", "INFO") for i in range(500))
    one = found(early + work + worker(1, OOM))
    assert one.rank == 1
    assert one.kind == "cuda-oom"


def test_a_warning_with_a_traceback_and_an_ignored_exception_are_passed_over() -> None:
    warned = worker(0, OOM.replace("OutOfMemoryError: CUDA", "ImportError: no"), "WARNING")
    ignored = (
        "Exception ignored in: <function X.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "/env/x.py", line 1, in __del__\n    self.close()\nAttributeError: no close\n'
    )
    one = found(warned + ignored + worker(2, OOM))
    assert one.rank == 2


def test_a_chain_is_named_by_what_was_raised_first_unless_that_was_a_lookup() -> None:
    first = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n    x\n'
    cause_of = "\nThe above exception was the direct cause of the following exception:\n\n"
    while_of = "\nDuring handling of the above exception, another exception occurred:\n\n"
    last = 'Traceback (most recent call last):\n  File "/b.py", line 2, in g\n    y\n'
    direct = found(
        f"{first}OSError: [Errno 5] Input/output error\n{cause_of}{last}RuntimeError: x\n"
    )
    assert direct.type == "OSError"
    assert direct.kind == "disk-error"
    lookup = found(f"{first}KeyError: 'kimi'\n{while_of}{last}ValueError: unknown model\n")
    assert (lookup.type, lookup.message) == ("ValueError", "unknown model")
    assert lookup.where is not None
    assert lookup.where.file == "/b.py"


def test_an_empty_message_shows_the_line_that_raised() -> None:
    text = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n    assert x > 0\n'
    one = found(f"{text}AssertionError\n")
    assert one.sentence == "AssertionError without a message, raised by `assert x > 0`"


def test_the_lines_before_are_those_of_the_same_process() -> None:
    before = "".join(worker(1, f"load {i}", "INFO") + worker(0, "noise", "INFO") for i in range(7))
    one = found(before + worker(1, OOM))
    assert one.before == (
        "INFO load 3",
        "INFO load 4",
        "INFO load 5",
        "INFO load 6",
        "ERROR WorkerProc hit an exception.",
    )


def test_consequences_alone_are_told_as_such() -> None:
    one = found(engine(FAILED) + PARENT)
    assert one.only_followed
    told = ErrorInfo("WorkerDiedError", "vLLM's worker of rank 1 died: killed by SIGKILL", 1)
    one = found(engine(FAILED) + PARENT, told)
    assert one.sentence.startswith("rank 1: WorkerDiedError")
    assert one.followed
    assert not one.only_followed
    assert cause("all is well\n") is None


def test_a_recorded_kill_names_the_rank_from_its_parents_words() -> None:
    one = found((RECORDED / "h200-tp2" / "0002" / "output.log").read_text())
    assert one.rank == 1
    assert one.only_followed


def test_what_the_run_itself_says_of_a_kill_is_the_cause() -> None:
    folder = RECORDED / "h200-tp2" / "0002"
    told = ErrorInfo("WorkerDiedError", "vLLM's worker of rank 1 died: killed by SIGKILL", 1)
    finder = CauseFinder()
    finder.add((folder / "output.log").read_bytes())
    one = finder.cause(told)
    assert one is not None
    assert one.rank == 1
    assert one.kind == "killed"
    assert any("Executor failed" in f.text for f in one.followed)


def test_the_same_is_found_whatever_the_pieces() -> None:
    text = (worker(3, OOM) + engine(FAILED) + PARENT).encode()
    whole = CauseFinder()
    whole.add(text)
    for size in (1, 7, 100):
        pieces = CauseFinder()
        for at in range(0, len(text), size):
            pieces.add(text[at : at + size])
        assert pieces.cause() == whole.cause()


def test_asking_meanwhile_changes_nothing() -> None:
    text = (worker(3, OOM) + engine(FAILED)).encode()
    whole, asked = CauseFinder(), CauseFinder()
    whole.add(text)
    for at in range(0, len(text), 50):
        asked.add(text[at : at + 50])
        asked.cause()
    assert asked.cause() == whole.cause()


def test_crashes_below_python_are_found() -> None:
    crash = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f (most recent call first):\n"
        '  File "/env/vllm/_custom_ops.py", line 12 in rms_norm\n'
        '  File "/env/vllm/model.py", line 400 in forward\n\n'
        "Thread 0x01 (most recent call first):\n"
    )
    one = found(crash)
    assert one.where is not None
    assert (one.where.file, one.where.line) == ("/env/vllm/_custom_ops.py", 12)
    assert one.kind == "segfault"
    thrown = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: x\n"
    )
    assert found(thrown).sentence == "c10::Error: CUDA error: x"


def test_a_log_of_any_length_is_read_from_its_file(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert of_log(log) is None
    told = ErrorInfo("ValueError", "no such model")
    one = of_log(log, told)
    assert one is not None
    assert one.sentence == "ValueError: no such model"
    with open(log, "wb") as file:
        file.write(worker(2, "quiet", "INFO").encode() * 1000)
        file.truncate(100 << 20)  # a hole in the middle, which nothing has to be read of
        file.seek(0, 2)
        file.write(b"\n" + worker(3, OOM).encode())
    one = of_log(log)
    assert one is not None
    assert (one.rank, one.line, one.kind) == (3, None, "cuda-oom")
    assert one.todo
