"""The preflight command: an answer to read, progress, and what can be done about it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from eagle3_agent.protocol.messages import Act, Acted, Checked, Probing, RunPreflight
from eagle3_agent.protocol.values import Action, Problem, Report, Verdict
from eagle3_console import cli
from eagle3_console.commands import terminal as terminal_module
from eagle3_console.errors import ConsoleError, ExitCode
from support import thirty, verdicts
from support.cli import BLOCKED, READY, Bench, Screen

NOW = 1000.0


def test_the_answer_stands_first_and_what_passes_is_one_line(
    host: Bench, profile_path: str
) -> None:
    host.answers[RunPreflight] = Checked(1, verdicts.many(NOW))
    ran = host.run("preflight", "gpu-01", "-p", profile_path)
    assert ran.code == ExitCode.FAILED
    lines = ran.out.splitlines()
    assert lines[0] == "BLOCKED by 1 of 30 checks (gpu-clean), 1.8 s"
    assert lines[1] == "✗ GPU memory free  (gpu-clean)"
    assert lines[2].startswith("    8 of 8 GPUs hold 71.2 GiB")
    assert lines[3].startswith("    vLLM takes gpu_memory_utilization")
    assert lines[4] == "    ▸ Stop the service for the run: systemctl stop vllm-router.service"
    assert lines[5].startswith("    --fix  stop-vllm.service: Stop vllm-router.service")
    assert lines[6].startswith("    --fix  terminate-48213: End pid 48213")
    assert [line for line in lines if line.startswith("! ")] == [
        "! Clocks not held back  (throttle)",
        "! Output folder  (output)",
        "! Memory that can be locked  (memlock)",
    ]
    assert "✓ 25 pass, 1 cannot tell" in lines
    assert "3 actions are offered: --fix" in lines[-1]
    assert "Fabric manager" not in ran.out


def test_all_unfolds_every_check(host: Bench, profile_path: str) -> None:
    host.answers[RunPreflight] = Checked(1, verdicts.many(NOW))
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--all")
    for verdict in verdicts.many(NOW).verdicts:
        assert verdict.title in ran.out
    assert "· No Xid in the kernel log" in ran.out
    assert "25 pass" not in ran.out


def test_ready_says_so_first_with_the_warnings(host: Bench, profile_path: str) -> None:
    host.answers[RunPreflight] = Checked(1, verdicts.mended(NOW))
    ran = host.run("preflight", "gpu-01", "-p", profile_path)
    assert ran.code == ExitCode.DONE
    assert ran.out.startswith("READY: no check of 30 blocks, 3 to look at, 1.8 s\n")


def test_a_deep_one_is_asked_for_and_its_progress_goes_to_stderr(
    host: Bench, profile_path: str
) -> None:
    host.answers[RunPreflight] = Checked(1, READY)
    host.link.progress = [Probing(1, 0, 2, ("nccl", "disk-speed")), Probing(1, 1, 2, ("nccl",))]
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--deep", "--json")
    assert host.link.asked[0].deep
    assert ran.object["deep"] is True
    first, second = ran.err.splitlines()
    assert first.startswith("  ▶ 0 of 2 probes, ")
    assert first.endswith("; waiting for nccl, disk-speed")
    assert second.endswith("; waiting for nccl")
    quick = host.run("preflight", "gpu-01", "-p", profile_path)
    assert quick.err == "", "a quick one is over before one could read of it"
    assert not host.link.asked[1].deep


def test_progress_is_written_over_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Screen()
    shown = terminal_module.Terminal(out=io.StringIO(), err=err)
    shown.status("  ▶ 1 of 3 probes")
    shown.status("  ▶ 2 of 3 probes\x1b[2J")
    shown.settle()
    assert err.getvalue().count("\r") == 3
    assert "\n" not in err.getvalue()
    assert "\x1b[2J" not in err.getvalue()


# ------------------------------------------------------------------ --fix


class Host:
    """Offers what ``thirty`` offers until it is told to do it."""

    def __init__(self, bench: Bench, helps: bool = True) -> None:
        self.done: list[str] = []
        self.helps = helps
        bench.answers[RunPreflight] = lambda _: Checked(1, self.report())
        bench.answers[Act] = self.act

    def report(self) -> Report:
        gone = {"gpu-clean": ("stop-vllm.service", "terminate-48213"), "output": ("move-aside-0",)}
        mended = [c for c, ids in gone.items() if self.helps and set(ids) & set(self.done)]
        return Report(
            tuple(_passing(v) if v.check in mended else v for v in thirty.VERDICTS), 1.8, NOW
        )

    def act(self, asked: Act) -> Acted:
        self.done.append(asked.action.id)
        verdict = next(v for v in self.report().verdicts if v.check == asked.check)
        return Acted(1, (f"did {asked.action.id}",), verdict, self.helps)


def _passing(verdict: Verdict) -> Verdict:
    return replace(verdict, status="pass", saw="well now", actions=())


def test_fix_without_a_terminal_does_nothing_and_says_how(host: Bench, profile_path: str) -> None:
    made = Host(host)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix")
    assert ran.code == ExitCode.USAGE
    assert made.done == []
    assert "Nobody can be asked here, so nothing was done" in ran.err
    assert "add --yes" in ran.err
    assert "BLOCKED by 1 of 30 checks" in ran.out
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "--json")
    assert ran.code == ExitCode.USAGE
    assert ran.object["problem"]["code"] == "usage"
    assert ran.object["preflight"]["verdicts"][3]["actions"][0]["id"] == "stop-vllm.service"


def test_fix_with_yes_does_each_once_and_checks_everything_again(
    host: Bench, profile_path: str
) -> None:
    made = Host(host)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "--yes")
    assert ran.code == ExitCode.DONE
    assert made.done == ["stop-vllm.service", "move-aside-0"], "the second way was not needed"
    assert [type(m) for m in host.link.asked] == [RunPreflight, Act, Act, RunPreflight]
    assert host.link.asked[1].action == thirty.STOP
    assert host.link.asked[1].check == "gpu-clean"
    for line in thirty.STOP.effect:
        assert line in ran.err
    assert "did stop-vllm.service" in ran.err
    assert "✓ it helped: gpu-clean now: well now" in ran.err
    assert ran.out.startswith("BLOCKED by 1 of 30")
    assert "READY: no check of 30 blocks, 2 to look at" in ran.out


def test_fix_of_named_checks_leaves_the_others(host: Bench, profile_path: str) -> None:
    made = Host(host)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "output", "--yes", "--json")
    assert made.done == ["move-aside-0"]
    assert ran.code == ExitCode.FAILED
    assert ran.object["blocking"] == ["gpu-clean"]
    assert ran.object["warning"] == ["throttle", "memlock"]
    (fixed,) = ran.object["fixes"]
    assert fixed == {
        "check": "output",
        "action": "move-aside-0",
        "kind": "move-aside",
        "title": thirty.ASIDE.title,
        "effect": list(thirty.ASIDE.effect),
        "done": ["did move-aside-0"],
        "helped": True,
        "now": "well now",
        "problem": None,
    }


def test_fix_that_does_not_help_says_so_and_tries_the_next_way(
    host: Bench, profile_path: str
) -> None:
    made = Host(host, helps=False)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "gpu-clean", "--yes")
    assert made.done == ["stop-vllm.service", "terminate-48213"]
    assert ran.code == ExitCode.FAILED
    assert ran.err.count("! it did not help: gpu-clean") == 2


def test_a_refused_action_is_told_and_the_rest_goes_on(host: Bench, profile_path: str) -> None:
    made = Host(host)

    def act(asked: Act) -> Acted:
        if asked.action.kind == "stop-unit":
            raise ConsoleError(Problem("Not done", "the unit is another's", "Ask its owner."))
        return made.act(asked)

    host.answers[Act] = act
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "gpu-clean", "--yes")
    assert "not done: Not done: the unit is another's" in ran.err
    assert "▸ Ask its owner." in ran.err
    assert made.done == ["terminate-48213"]
    assert ran.code == ExitCode.DONE


def test_a_link_lost_during_an_action_ends_it_with_three(host: Bench, profile_path: str) -> None:
    Host(host)
    host.answers[Act] = ConsoleError(Problem("Lost", "gone", "Look.", "connect"))
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "--yes")
    assert ran.code == ExitCode.CONNECT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fix", "gpu-claen", "--yes"), "There is no check 'gpu-claen'"),
        (("--yes",), "--yes has nothing to agree to"),
    ],
)
def test_a_wrong_command_line_does_nothing(
    host: Bench, profile_path: str, arguments: tuple[str, ...], words: str
) -> None:
    made = Host(host)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, *arguments)
    assert ran.code == ExitCode.USAGE
    assert words in ran.err
    assert made.done == []


def test_where_nothing_is_offered_there_is_nothing_to_fix(host: Bench, profile_path: str) -> None:
    host.answers[RunPreflight] = Checked(1, BLOCKED)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "disk")
    assert ran.code == ExitCode.FAILED
    assert "nothing to fix: no check offers an action (disk)" in ran.err
    assert [type(m) for m in host.link.asked] == [RunPreflight], "nothing changed: no second check"
    assert (
        host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "--json").object["fixes"] == []
    )


Answers = Callable[[str], tuple[int, str]]


@pytest.fixture
def answering(
    host: Bench, profile_path: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, str]]:
    """Runs --fix on a terminal whose person types this; (exit code, stderr)."""

    def run(typed: str) -> tuple[int, str]:
        err = Screen()

        def make(**options: Any) -> terminal_module.Terminal:
            return terminal_module.Terminal(
                **options, stdin=Screen(typed), out=io.StringIO(), err=err
            )

        monkeypatch.setattr(cli, "Terminal", make)
        return cli.main(["preflight", "gpu-01", "-p", profile_path, "--fix"]), err.getvalue()

    return run


def test_each_action_is_asked_about_and_no_is_the_default(host: Bench, answering: Answers) -> None:
    made = Host(host)
    code, said = answering("\n\nn\n")
    assert made.done == []
    assert code == ExitCode.FAILED
    assert said.count("Do this? [y/N]") == 3
    assert said.count("nothing was done") == 3
    for action in (thirty.STOP, thirty.END, thirty.ASIDE):
        for line in action.effect:
            assert line in said, "the whole effect is shown before the question"
    code, said = answering("y\nno\n")
    assert made.done == ["stop-vllm.service"]
    assert code == ExitCode.DONE
    assert said.count("Do this? [y/N]") == 2


def test_the_end_of_the_input_is_a_no(host: Bench, answering: Answers) -> None:
    made = Host(host)
    answering("")
    assert made.done == []


def test_a_hostile_action_cannot_move_the_cursor(host: Bench, profile_path: str) -> None:
    evil = "\x1b[2J\x1b]0;x\x07\u202etxt\r\x00"
    action = Action(evil, "terminate", evil, (evil, evil), unit=evil, path=evil)
    bad = Verdict("gpu-clean", evil, "block", evil, evil, evil, actions=(action,))
    host.answers[RunPreflight] = Checked(1, Report((bad,), 0.1, NOW))
    host.answers[Act] = Acted(1, (evil,), bad, False)
    ran = host.run("preflight", "gpu-01", "-p", profile_path, "--fix", "--yes")
    for stream in (ran.out, ran.err):
        assert not any(ord(c) < 32 and c != "\n" for c in stream)
        assert "\u202e" not in stream
