"""`octavo eval`: commands that say how well a model knows something."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.generate import Json, Verbose
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes
from octavo.cli.plain_values import PlainGroup
from octavo.importing import hurry

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TEXT = "Text"

TextFile = Annotated[str, typer.Argument(help="A UTF-8 text; - reads standard input.", metavar="FILE")]
Window = Annotated[
    int | None,
    typer.Option(
        "--window",
        help="Tokens of a window, BOS included: one less than --max-model-len, by default 2048 or what fits.",
        parser=flags.parse_count,
        metavar="N",
        rich_help_panel=_TEXT,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        "--stride",
        help="Tokens from one window's beginning to the next one's: half a window by default.",
        parser=flags.parse_count,
        metavar="N",
        rich_help_panel=_TEXT,
    ),
]

DEFINITION = """
The text becomes token ids at once. Window k holds BOS, where the tokenizer puts one before a text, then ids from
k * stride on, as many as fit; it scores the ids that no window before it has scored, each given all that stands before
it in its window. So ids of every window but the first have at least window - stride tokens before them, and without a
BOS the first id of the text is not scored, nor, with a stride of the whole window, that of any window. nats_per_token
is minus the mean natural logarithm of the scored ids' probabilities, perplexity is exp of that, bits_per_byte is what
they cost in all per byte of their text.
"""


@app.callback()
def evaluate() -> None:
    """Say how well a model knows something."""


@app.command(cls=TextHelp, epilog=DEFINITION)
def perplexity(
    file: TextFile,
    model: flags.ModelName = "demo",
    tokenizer: flags.Tokenizer = None,
    revision: flags.Revision = None,
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = "auto",
    max_model_len: flags.MaxModelLen = None,
    load_format: flags.LoadFormat = "auto",
    device: flags.Device = "auto",
    tensor_parallel_size: flags.TensorParallelSize = 1,
    data_parallel_size: flags.DataParallelSize = 1,
    pipeline_parallel_size: flags.PipelineParallelSize = 1,
    pipeline_layers: flags.PipelineLayers = None,
    distributed_executor_backend: flags.ExecutorBackend = None,
    kv_memory: flags.KVMemory = None,
    memory_utilization: flags.MemoryUtilization = None,
    block_size: flags.BlockSize = None,
    num_blocks_override: flags.NumBlocksOverride = None,
    kv_cache_dtype: flags.KVCacheDtype = "auto",
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    window: Window = None,
    stride: Stride = None,
    *,
    trust_remote_code: flags.TrustRemoteCode = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Perplexity of a text, by windows that slide over it; as with transformers in the same dtype."""
    given: dict[str, Any] = dict(locals())
    with exit_codes(), hurry():
        importlib.import_module("octavo.cli.evaluation").run_perplexity(given)
