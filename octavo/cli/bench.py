"""`octavo bench`: commands that measure the engine."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import bench_local, bench_serve, flags
from octavo.cli.generate import FIGURES, Json, Verbose
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

WorkloadFile = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help="JSON: a name and a list of requests, each with a prompt of token ids and its max_tokens.",
        metavar="FILE",
        rich_help_panel="Workload",
    ),
]

BENCH_FIGURES = (
    FIGURES.rstrip()
    + """
Of the requests: first_token_s and latency_s are from handing in all of them to each one's first and last token;
token_s is the time between a request's tokens after its first. start_to_first_token_s is from the start of the process
to the first token of any request.
"""
)


bench_serve.register(app)
bench_local.register(app, BENCH_FIGURES)


@app.callback()
def bench() -> None:
    """Measure the engine: the same work every time, greedily, in a process of its own."""


@app.command(cls=TextHelp, epilog=BENCH_FIGURES)
def offline(
    workload: WorkloadFile,
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
    *,
    trust_remote_code: flags.TrustRemoteCode = False,
    enable_prefix_caching: flags.PrefixCaching = True,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a workload file: all requests handed in at once, token ids in and out, outputs of fixed lengths."""
    given: dict[str, Any] = dict(locals())
    with exit_codes(), hurry():
        importlib.import_module("octavo.cli.bench_offline").run(given)
