"""`octavo bench throughput` and `octavo bench latency`: their flags, which are those of `vllm bench`."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.bench_serve import (
    Dataset,
    DatasetPath,
    InputLen,
    NumPrefixes,
    NumPrompts,
    OutputLen,
    Percentiles,
    PrefixLen,
    RangeRatio,
    Seed,
)
from octavo.cli.generate import Json, Verbose
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes

_RUNS = "Runs"

BatchInputLen = Annotated[
    int,
    typer.Option(
        "--input-len", "--random-input-len", help="Tokens of each prompt.", parser=flags.parse_count, metavar="N",
        rich_help_panel=_RUNS,
    ),
]  # fmt: skip
BatchOutputLen = Annotated[
    int,
    typer.Option(
        "--output-len", "--random-output-len", help="Tokens of each output.", parser=flags.parse_count, metavar="N",
        rich_help_panel=_RUNS,
    ),
]  # fmt: skip
BatchSize = Annotated[
    int, typer.Option(help="Requests of one batch, all handed in at once.", metavar="N", min=1, rich_help_panel=_RUNS)
]
NumIters = Annotated[
    int, typer.Option(help="How often the batch is run and counted.", metavar="N", min=1, rich_help_panel=_RUNS)
]
NumItersWarmup = Annotated[
    int, typer.Option(help="How often it is run before, not counted.", metavar="N", min=0, rich_help_panel=_RUNS)
]


def register(app: typer.Typer, figures: str) -> None:
    """Add both commands to `app`; `figures` explains what throughput prints."""
    app.command(cls=TextHelp, epilog=figures)(throughput)
    app.command(cls=TextHelp)(latency)


def throughput(
    model: flags.ModelName = "demo",
    tokenizer: flags.Tokenizer = None,
    revision: flags.Revision = None,
    dataset: Dataset = "random",
    dataset_path: DatasetPath = None,
    num_prompts: NumPrompts = 100,
    input_len: InputLen = 1024,
    output_len: OutputLen = 128,
    range_ratio: RangeRatio = 0.0,
    prefix_len: PrefixLen = 0,
    num_prefixes: NumPrefixes = 10,
    seed: Seed = 0,
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = "auto",
    max_model_len: flags.MaxModelLen = None,
    load_format: flags.LoadFormat = "auto",
    device: flags.Device = "auto",
    tensor_parallel_size: flags.TensorParallelSize = 1,
    kv_memory: flags.KVMemory = None,
    memory_utilization: flags.MemoryUtilization = None,
    block_size: flags.BlockSize = None,
    kv_cache_dtype: flags.KVCacheDtype = "auto",
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    *,
    trust_remote_code: flags.TrustRemoteCode = False,
    enable_prefix_caching: flags.PrefixCaching = True,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Hand in a dataset's requests at once, and measure until the last has ended. Times of a trace are not kept."""
    given: dict[str, Any] = dict(locals())
    with exit_codes():
        importlib.import_module("octavo.cli.bench_running").run_throughput(given)


def latency(
    model: flags.ModelName = "demo",
    tokenizer: flags.Tokenizer = None,
    revision: flags.Revision = None,
    input_len: BatchInputLen = 32,
    output_len: BatchOutputLen = 128,
    batch_size: BatchSize = 8,
    num_iters: NumIters = 10,
    num_iters_warmup: NumItersWarmup = 2,
    percentiles: Percentiles = "10,25,50,75,90,99",
    seed: Seed = 0,
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = "auto",
    max_model_len: flags.MaxModelLen = None,
    load_format: flags.LoadFormat = "auto",
    device: flags.Device = "auto",
    tensor_parallel_size: flags.TensorParallelSize = 1,
    kv_memory: flags.KVMemory = None,
    block_size: flags.BlockSize = None,
    kv_cache_dtype: flags.KVCacheDtype = "auto",
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    *,
    trust_remote_code: flags.TrustRemoteCode = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run one batch again and again, each time with new prompts, and measure how long a batch takes."""
    given: dict[str, Any] = dict(locals()) | {"enable_prefix_caching": False}
    with exit_codes():
        importlib.import_module("octavo.cli.bench_running").run_latency(given)
