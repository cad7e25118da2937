"""`octavo chat`: a conversation in the terminal, with a model in this process or with a server."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.generate import MaxTokens, MinP, RepetitionPenalty, Seed, TopK, TopP, Verbose
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_SERVER = "Server"

Url = Annotated[
    str | None,
    typer.Option(
        help="Talk to the server at this address, such as http://127.0.0.1:8000, instead of loading a model.",
        metavar="URL",
        rich_help_panel=_SERVER,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(help="The server's key; by default OCTAVO_API_KEY.", metavar="KEY", rich_help_panel=_SERVER),
]
System = Annotated[
    str | None, typer.Option(help="The system's turn at the beginning.", metavar="TEXT", rich_help_panel="Conversation")
]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="0 always takes the most likely token.", rich_help_panel="Sampling")
]
ChatModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="demo-smollm2, a folder, a .gguf file, or a hub id; of a server, one of its models.",
        rich_help_panel="Model",
    ),
]

COMMANDS = """
Within the conversation: /reset begins anew, /undo takes the last exchange back, /system TEXT sets the system's turn,
/exit (or Ctrl-D) ends. A line that ends in a backslash goes on in the next one. Ctrl-C stops an answer. Without a
terminal every line of standard input is a turn.
"""


@app.command(cls=TextHelp, epilog=COMMANDS)
def chat(
    model: ChatModel = None,
    url: Url = None,
    api_key: ApiKey = None,
    system: System = None,
    tokenizer: flags.Tokenizer = None,
    revision: flags.Revision = None,
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = "auto",
    max_model_len: flags.MaxModelLen = None,
    load_format: flags.LoadFormat = "auto",
    device: flags.Device = "auto",
    kv_memory: flags.KVMemory = None,
    kv_cache_dtype: flags.KVCacheDtype = "auto",
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_k: TopK = 0,
    top_p: TopP = 0.95,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = None,
    *,
    trust_remote_code: flags.TrustRemoteCode = False,
    verbose: Verbose = False,
) -> None:
    """Talk with a model: demo-smollm2 unless told otherwise, or whatever runs behind --url."""
    given: dict[str, Any] = dict(locals())
    with exit_codes():
        importlib.import_module("octavo.cli.chatting").run(given)
