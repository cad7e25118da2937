"""`octavo chat` in this process: its fake model answers with the prompt backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from octavo.cli.chatting import Talk
from octavo.cli.partners import Partner
from octavo.errors import RequestError
from tests.cli.terminal import Said, run_octavo
from tests.engine.fake_core import FakeCore
from tests.engine.fake_model import install_fake_model


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    fake = install_fake_model(monkeypatch)
    yield fake
    assert fake.running == {}, "something was left running"


def _chat(monkeypatch: pytest.MonkeyPatch, stdin: str, *arguments: str) -> Said:
    return run_octavo(monkeypatch, ["chat", *arguments], stdin)


def test_every_line_is_a_turn_and_earlier_turns_are_kept(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _chat(monkeypatch, "a\n\n b \n")
    first = "<user>a<assistant>"[::-1]
    assert said.code == 0
    assert said.out == f"{first}\n" + f"<user>a<assistant>{first}<user>b<assistant>"[::-1] + "\n"
    assert core.is_shut_down


def test_commands_change_the_conversation(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _chat(monkeypatch, "a\n/undo\n/system s\nb\n/reset\n/system\nc\n/nonsense\n/exit\nd\n", "--system", "old")
    prompts = ["<system>old<user>a<assistant>", "<system>s<user>b<assistant>", "<user>c<assistant>"]
    assert said.out.split() == [prompt[::-1] for prompt in prompts]
    assert "/nonsense is no command" in said.err
    assert said.code == 0


def test_a_line_that_ends_in_a_backslash_goes_on(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    assert _chat(monkeypatch, "a\\\nb").out == "<user>a\nb<assistant>"[::-1] + "\n"
    assert _chat(monkeypatch, "a\\\n").out == "<user>a<assistant>"[::-1] + "\n"


def test_a_turn_that_is_refused_is_told_and_forgotten(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _chat(monkeypatch, "x" * 3000 + "\nb\n")
    assert "error: " in said.err
    assert said.out == "<user>b<assistant>"[::-1] + "\n"
    assert said.code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", "-1"], "--max-tokens is -1"),
        (["--temperature", "-1"], "error: --temperature is -1"),
        (["--dtype", "float3"], "--dtype is float3"),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    said = _chat(monkeypatch, "a\n", *arguments)
    assert said.code == 1
    assert said.err.startswith("error: ")
    assert words in said.err


class _Interrupted(Partner):
    """Says half of an answer, then somebody types Ctrl-C."""

    name = "half"

    def answer(self, messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        self.heard = messages
        yield "half"
        raise KeyboardInterrupt

    def note(self) -> str:
        return "a note"

    def close(self) -> None:
        pass


def test_ctrl_c_stops_an_answer_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partner = _Interrupted()
    talk = Talk(partner, None)
    monkeypatch.setattr(talk, "_is_terminal", True)
    lines = iter(["one", "two"])

    def read(_: str) -> str | None:
        return next(lines, None)

    monkeypatch.setattr(talk, "_read", read)
    talk.run()
    said = capsys.readouterr()
    assert said.out == "half\nhalf\n"
    assert said.err.count("a note") == 2
    assert partner.heard == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "half"},
        {"role": "user", "content": "two"},
    ]
    monkeypatch.setattr(talk, "_is_terminal", False)
    lines = iter(["three"])
    with pytest.raises(KeyboardInterrupt):
        talk.run()


def test_an_error_in_the_middle_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(_Interrupted):
        def answer(self, messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
            self.heard = messages
            yield "half"
            raise RequestError("It broke.")

    partner = Broken()
    talk = Talk(partner, None)
    lines = iter(["one\n", "two\n"])
    monkeypatch.setattr("sys.stdin.readline", lambda: next(lines, ""), raising=False)
    talk.run()
    assert "error: It broke." in capsys.readouterr().err
    assert len(partner.heard) == 3
