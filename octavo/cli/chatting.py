"""What `octavo chat` does once its flags are read: turns in, answers out, until the end of the input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from rich.console import Console

from octavo.cli.generation import naming_flags
from octavo.cli.partners import LocalPartner, Partner, ServerPartner
from octavo.config import read_api_keys
from octavo.engine.engine_args import engine_config_from
from octavo.errors import OctavoError, RequestError
from octavo.request import SamplingParams

DEFAULT_MODEL = "demo-smollm2"
SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
ENGINE_FLAGS = (
    "model", "tokenizer", "revision", "dtype", "quantization", "max_model_len", "load_format", "device", "kv_memory",
    "kv_cache_dtype", "trust_remote_code",
)  # fmt: skip

_COMMANDS = "/reset, /undo, /system TEXT and /exit"


def run(flags: Mapping[str, Any]) -> None:
    """Talk until the input ends. Raises `OctavoError` for what ends the conversation before it begins."""
    if flags["max_tokens"] < 0:
        raise RequestError(
            f"--max-tokens is {flags['max_tokens']}.", remedy="It must be at least 1, or 0 for no limit."
        )
    fields = {name: flags[name] for name in SAMPLING_FLAGS}
    with naming_flags():
        sampling = SamplingParams(**fields, max_tokens=flags["max_tokens"] or None)
    with _partner(flags, sampling) as partner:
        Talk(partner, flags["system"]).run()


def _partner(flags: Mapping[str, Any], sampling: SamplingParams) -> Partner:
    if flags["url"] is not None:
        key = flags["api_key"] or next(iter(read_api_keys()), None)
        return ServerPartner(flags["url"], sampling, model=flags["model"], api_key=key)
    options = {name: flags[name] for name in ENGINE_FLAGS} | {"model": flags["model"] or DEFAULT_MODEL}
    engine_config_from(options)
    return LocalPartner(options, sampling, verbose=flags["verbose"])


class Talk:
    """One conversation. Owns: its turns. Never: ends for a turn that is refused."""

    def __init__(self, partner: Partner, system: str | None) -> None:
        self._partner = partner
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(stderr=True, highlight=False)

    def run(self) -> None:
        """Read turns and answer them until the input ends, or somebody says so."""
        if self._is_terminal:
            self._tell(f"{self._partner.name}; {_COMMANDS}, Ctrl-C stops an answer")
        for text in self._texts():
            command, _, rest = text.partition(" ")
            if command in self._commands:
                self._commands[command](self, rest.strip())
            elif command.startswith("/") and command[1:].isalpha():
                self._tell(f"{command} is no command; there are {_COMMANDS}")
            else:
                self._answer(text)

    def _answer(self, text: str) -> None:
        self._turns.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self._system}] if self._system else []
        said = ""
        try:
            try:
                for piece in self._partner.answer([*system, *self._turns]):
                    said += piece
                    sys.stdout.write(piece)
                    sys.stdout.flush()
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
            finally:
                if said and not said.endswith("\n"):
                    sys.stdout.write("\n")
                    sys.stdout.flush()
        except OctavoError as error:
            if not said:
                self._turns.pop()
            self._console.print(f"error: {error}", markup=False, soft_wrap=True)
        if said:
            self._turns.append({"role": "assistant", "content": said})
        if self._is_terminal and (note := self._partner.note()):
            self._tell(note)

    def _texts(self) -> Iterator[str]:
        """Turns of the user: lines, of which one that ends in a backslash goes on in the next."""
        text = ""
        while (line := self._read("... " if text else ">>> ")) is not None:
            text += line
            if text.endswith("\\"):
                text = text[:-1] + "\n"
                continue
            if text.strip():
                yield text.strip()
            text = ""
        if text.strip():
            yield text.strip()

    def _read(self, mark: str) -> str | None:
        """The next line; None at the end. Ctrl-C at an empty terminal ends as Ctrl-D does."""
        try:
            if self._is_terminal:
                return self._console.input(f"[bold green]{mark}[/]")
            line = sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            sys.stderr.write("\n")
            return None
        return line.rstrip("\r\n") if line else None

    def _reset(self, _: str) -> None:
        self._turns.clear()
        self._tell("a new conversation")

    def _undo(self, _: str) -> None:
        while self._turns and self._turns.pop()["role"] != "user":
            pass
        self._tell(f"{len(self._turns)} turns are left")

    def _set_system(self, text: str) -> None:
        self._system = text or None
        self._tell("the system's turn is set" if text else "there is no system's turn")

    def _end(self, _: str) -> NoReturn:
        raise SystemExit(0)

    def _tell(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, soft_wrap=True)

    _commands: Mapping[str, Callable[[Talk, str], None]] = {
        "/reset": _reset, "/undo": _undo, "/system": _set_system, "/exit": _end, "/quit": _end,
    }  # fmt: skip
