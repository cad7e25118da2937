"""What the user asks for (`EngineConfig`) and what a model's files say (`ModelConfig`).

`EngineConfig` has four parts; each is handed only to the code that uses it:

    EngineConfig
    ├── model: ModelSource         which model, from where, in which dtype
    ├── cache: CacheConfig         block size, budget, prefix caching
    ├── scheduler: SchedulerConfig token budget, number of sequences, policy
    └── parallel: ParallelConfig   ranks

All structs are frozen: resolved once at start-up, never written to afterwards.
The process environment is read here and nowhere else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from octavo.errors import ConfigError

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of one element, by the dtype names that plans use."""

COMPUTE_DTYPES = ("auto", "bfloat16", "float16", "float32")
"""What `--dtype` accepts."""

QUANTIZATIONS = ("auto", "none", "gguf", "int8")
"""What `--quantization` accepts: `none` keeps weights in the dtype of computation, `gguf` as a GGUF file has them,
`int8` makes 8 bits of them; `auto` is `gguf` for a GGUF file that is computed in bfloat16 on a CPU, else `none`."""

MAX_STEP_TOKENS = 2**24
"""Most tokens that one step may be given: buffers of a step are made before the first one."""

MAX_STEP_SEQS = 65_536
"""Most requests that may run at once: each has a row in every table of a rank."""

MAX_RANKS = 4096
"""Most ranks in one direction."""

INT32_MAX = 2**31 - 1
"""Block ids and positions are int32."""

_SIZE_UNITS = {"": 1, "B": 1} | {
    f"{letter}{infix}B": base**power
    for infix, base in (("", 1000), ("I", 1024))
    for power, letter in enumerate("KMGTP", start=1)
}


def parse_bytes(text: str | int) -> int:
    """Bytes meant by `text`: `"1GiB"` is 2**30, `"1GB"` is 10**9, `"123"` and `123` are 123.

    Raises `ConfigError` for a negative number, one of 2**63 bytes or more, an unknown unit, no number, and what is
    neither a text nor a whole number.
    """
    num_bytes: float = -1
    if isinstance(text, str):
        stripped = text.strip()
        digits = stripped.rstrip("BbKkMmGgTtPpIi").strip()
        factor = _SIZE_UNITS.get(stripped[len(digits) :].strip().upper())
        try:
            if factor is not None:
                num_bytes = float(digits.replace("_", "")) * factor
        except ValueError:
            pass
    elif isinstance(text, int) and not isinstance(text, bool):
        num_bytes = text
    if not num_bytes >= 0:  # nan, too
        raise ConfigError(
            f"{text!r:.60} is not a size in bytes.",
            remedy="Write a number with a unit, such as 1GiB (2**30 bytes), 512MiB or 2GB (10**9 bytes).",
        )
    _check(num_bytes < 2**63, "A size", f"{text!r:.60}, which is too large", "less than 8192 PiB (2**63 bytes)")
    return int(num_bytes)


def format_bytes(num_bytes: int) -> str:
    """`num_bytes` for people, in binary units: `1.00 GiB`, `16.0 KiB`, `12 B`."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.95 or unit == "TiB":  # what would be written as 1024.0 is one of the next unit
            break
        value /= 1024
    if unit == "B":
        return f"{num_bytes} B"
    return f"{value:.2f} {unit}" if value < 100 else f"{value:.1f} {unit}"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The process environment, as far as Octavo heeds it."""

    cache_dir: Path
    """Where assembled demo models, tokenizers and compiled kernels are kept (`OCTAVO_CACHE`, `XDG_CACHE_HOME`)."""
    attention_backend: str
    """`OCTAVO_ATTENTION_BACKEND`: a backend's name, or empty for the default of the device."""
    ray_address: str
    """`RAY_ADDRESS`: host:port of a Ray cluster, `local`, or empty for the one of this machine, or else a local one."""
    num_threads: int
    """`OCTAVO_NUM_THREADS`: compute threads of one rank; 0 means every core this process may use."""


_SPINS = "20000"
"""Turns an idle OpenMP thread waits before it sleeps: about 1 ms, longer than most gaps inside a step."""


def prefer_short_spins() -> None:
    """Let OpenMP's idle threads sleep soon, unless the user chose how they wait.

    GNU OpenMP's own default is to spin for milliseconds at the end of every parallel loop. With one other busy process
    on the machine, the thread that is waited for then loses its core to the one that spins, and a step takes many times
    as long (docs/decisions/0012). OpenMP reads this once, when torch is imported: call before that.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def find_cache_dir() -> Path:
    """The folder of `OCTAVO_CACHE`, `XDG_CACHE_HOME` or the user's home. Raises `ConfigError` when there is none."""
    named, base = os.environ.get("OCTAVO_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named or base:
        return Path(named) if named else Path(base or "", "octavo")
    try:
        return Path.home() / ".cache" / "octavo"
    except RuntimeError:
        raise ConfigError(
            "There is no folder to keep models and compiled kernels in: this user has no home.",
            remedy="Set OCTAVO_CACHE to a folder that can be written.",
        ) from None


def read_environment() -> Environment:
    """The environment now.

    Raises `ConfigError` when `OCTAVO_NUM_THREADS` is not a whole number, and as `find_cache_dir`.
    """
    threads = os.environ.get("OCTAVO_NUM_THREADS", "0")
    if not threads.isdigit():
        raise ConfigError(
            f"OCTAVO_NUM_THREADS is {threads!r}.", remedy="Set it to a whole number, or unset it to use every core."
        )
    return Environment(
        cache_dir=find_cache_dir(),
        attention_backend=os.environ.get("OCTAVO_ATTENTION_BACKEND", ""),
        ray_address=os.environ.get("RAY_ADDRESS", ""),
        num_threads=int(threads),
    )


def read_api_keys() -> tuple[str, ...]:
    """`OCTAVO_API_KEY`: the keys, with commas between them, that a server asks for when it is told of none."""
    return tuple(key for key in os.environ.get("OCTAVO_API_KEY", "").split(",") if key)


def child_environment() -> dict[str, str]:
    """The environment for a process of ours: it finds the same Octavo that this process runs, wherever it starts."""
    package_root = str(Path(__file__).resolve().parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, package_root])}


_OF_RANKS = ("OCTAVO_", "OMP_", "GOMP_", "HF_", "XDG_CACHE_HOME")
"""What the names of variables begin with that a rank on another machine is to see as they are here."""


def rank_environment() -> dict[str, str]:
    """The variables for a process of ours on another machine, which has an environment of its own."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_OF_RANKS)}
    return {**own, "PYTHONPATH": child_environment()["PYTHONPATH"]}


def drop_thread_limit(limit: str) -> None:
    """Forget `OMP_NUM_THREADS` where it is `limit`, which a cluster set by itself. Call before torch is imported."""
    if os.environ.get("OMP_NUM_THREADS") == limit:
        del os.environ["OMP_NUM_THREADS"]


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to run and how to load it. `load_format="dummy"` fills random weights from the config alone."""

    model: str
    """`demo`, `demo-smollm2`, a folder, a `.gguf` file, or a hub id."""
    tokenizer: str | None = None
    """A folder or hub id of another tokenizer; None takes the model's own."""
    revision: str | None = None
    dtype: str = "auto"
    """Compute dtype; `auto` takes bfloat16 where the device is fastest in it, else float32."""
    quantization: str = "auto"
    """How weights of linear layers are kept, by a name in `QUANTIZATIONS`."""
    max_model_len: int | None = None
    """Longest prompt + output in tokens; None is the model's own maximum, -1 the longest that fits the budget."""
    load_format: Literal["auto", "dummy"] = "auto"
    generation_config: str = "auto"
    """Whose sampling defaults: `auto` is the model's own file, `vllm` none, else a folder or file."""
    trust_remote_code: bool = False
    seed: int = 0
    """Seeds random weights (`dummy`) and requests that bring no seed of their own when sampling."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache's budget and habits."""

    block_size: int = 16
    """Tokens of one block."""
    kv_memory_bytes: int | None = None
    """The budget of each rank; None takes `memory_utilization` of the memory that is free after loading the weights."""
    kv_memory_by_rank: tuple[int, ...] = ()
    """Budgets that differ: one for each rank, or one for each pipeline stage; empty where they do not."""
    memory_utilization: float = 0.5
    """Share of the free memory that the KV cache may take when `kv_memory_bytes` is None."""
    kv_cache_dtype: str = "auto"
    """`auto` is the compute dtype."""
    enable_prefix_caching: bool = True
    retention_interval: int | None = None
    """Which full blocks of windowed groups enter the prefix cache: None every one, 0 only the replay boundary and
    junctions, n also one boundary every n tokens."""
    num_blocks_override: int | None = None
    """Exactly this many blocks (null block included) instead of as many as fit; refused above the budget."""
    metrics_sample: float | None = None
    """Share of the blocks whose lifetimes are measured; None measures none."""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one step."""

    max_num_batched_tokens: int = 2048
    """Token budget of one step, over all requests."""
    max_num_seqs: int = 128
    """Requests that may run at once."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    max_chunk_tokens: int | None = None
    """Most tokens one request may be given in one step; None is `max_num_batched_tokens`."""
    admit_whole_prompt: bool = True
    """Admit a request only when its whole prompt would fit the free blocks now."""


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many ranks, and where they live. World size = tensor_parallel_size * pipeline_parallel_size."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Engine cores, each with ranks and a cache of its own, behind one front."""
    data_parallel_rank: int = 0
    """The number of this one among them."""
    pipeline_layers: tuple[int, ...] = ()
    """Layers of each pipeline stage; empty: as equal as can be."""
    executor: str = "auto"
    """A name in the executor registry; `auto` is this process for one rank, and a process for each of several."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_local_ranks(self) -> int:
        """Ranks that share a machine, where all are on one."""
        return self.world_size * self.data_parallel_size


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the user decides. Build with `resolve_engine_config`, which checks it."""

    model: ModelSource
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()

    def cache_of(self, global_rank: int) -> CacheConfig:
        """The cache's settings of one rank, with its own budget."""
        budgets = self.cache.kv_memory_by_rank
        if not budgets:
            return self.cache
        num_sharing = self.parallel.world_size // len(budgets)
        return msgspec.structs.replace(
            self.cache, kv_memory_bytes=budgets[global_rank // num_sharing], kv_memory_by_rank=()
        )


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer keeps between steps, as the model's files describe it (whole model, before tensor parallelism)."""

    kind: Literal["full", "sliding_window", "chunked_local", "mla", "mamba", "none"] = "full"
    num_kv_heads: int = 0
    head_size: int = 0
    head_size_v: int | None = None
    """None: as `head_size`."""
    window: int | None = None
    """Sliding window in tokens: a token sees itself and the `window - 1` tokens before it."""
    chunk: int | None = None
    kv_sharing_target: int | None = None
    """Index of the earlier layer whose K and V this layer reads instead of keeping its own."""
    state_shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the state tensors of one request: of Mamba and linear attention, or of such a part beside attention."""
    state_dtypes: tuple[str, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say, as far as planning and serving need it. Made by `octavo.formats`."""

    name: str
    architecture: str
    """Class name of the causal-LM head in transformers, e.g. `Gemma3ForCausalLM`."""
    model_type: str
    dtype: str
    """The checkpoint's dtype."""
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    max_position: int
    """Longest sequence the model was made for, in tokens."""
    layers: tuple[LayerConfig, ...]
    weight_bytes: int | None = None
    """Bytes of the weights as stored; None when there is no weight file to read."""


def layer_name(index: int) -> str:
    """The name under which layer `index` appears in plans, specs and bindings."""
    return f"layers.{index}"


def state_name(index: int, layer: LayerConfig) -> str:
    """The name of layer `index`'s state: the layer's own, unless its attention has that."""
    return layer_name(index) if layer.kind == "mamba" else f"{layer_name(index)}.state"


def resolve_engine_config(config: EngineConfig) -> EngineConfig:
    """`config` itself after checking every field that needs no model file.

    Raises `ConfigError` with the flag, its value and what it may be.
    """
    _check_model(config.model)
    cache, scheduler, parallel = config.cache, config.scheduler, config.parallel
    _check(1 <= cache.block_size <= 4096, "--block-size", cache.block_size, "from 1 to 4096 tokens")
    _check(0 < cache.memory_utilization <= 1, "--memory-utilization", cache.memory_utilization, "above 0 and at most 1")
    size, blocks = cache.kv_memory_bytes, cache.num_blocks_override
    _check(size is None or size > 0, "--kv-memory", size, "more than 0 bytes, such as 1GiB")
    allowed = f"at least 2 (one is the null block) and at most {INT32_MAX}"
    _check(blocks is None or 2 <= blocks <= INT32_MAX, "--num-blocks-override", blocks, allowed)
    sample = cache.metrics_sample
    _check(sample is None or 0 < sample <= 1, "--kv-cache-metrics-sample", sample, "above 0 and at most 1")
    _check_budgets(cache, parallel)
    tokens, chunk, seqs = scheduler.max_num_batched_tokens, scheduler.max_chunk_tokens, scheduler.max_num_seqs
    _check(1 <= tokens <= MAX_STEP_TOKENS, "--max-num-batched-tokens", tokens, f"from 1 to {MAX_STEP_TOKENS}")
    _check(1 <= seqs <= MAX_STEP_SEQS, "--max-num-seqs", seqs, f"from 1 to {MAX_STEP_SEQS}")
    _check(chunk is None or 1 <= chunk <= MAX_STEP_TOKENS, "--max-chunk-tokens", chunk, f"from 1 to {MAX_STEP_TOKENS}")
    for flag, ranks in (
        ("--tensor-parallel-size", parallel.tensor_parallel_size),
        ("--pipeline-parallel-size", parallel.pipeline_parallel_size),
        ("--data-parallel-size", parallel.data_parallel_size),
    ):
        _check(1 <= ranks <= MAX_RANKS, flag, ranks, f"from 1 to {MAX_RANKS}")
    return config


def _check_budgets(cache: CacheConfig, parallel: ParallelConfig) -> None:
    sizes = cache.kv_memory_by_rank
    told = ", ".join(map(format_bytes, sizes))
    _check(min(sizes, default=1) > 0, "--kv-memory", told, "more than 0 bytes for each rank, such as 1GiB,2GiB")
    stages, ranks = parallel.pipeline_parallel_size, parallel.world_size
    _check(
        len(sizes) in (0, stages, ranks),
        "--kv-memory",
        told,
        f"one size, or one for each of the {stages} stages, or of the {ranks} ranks",
    )


def _check_model(source: ModelSource) -> None:
    if not isinstance(source.model, str):
        raise ConfigError(f"--model is {source.model!r:.60}.", remedy="It must be a text, such as demo, or a path.")
    if not source.model.strip():
        raise ConfigError("No model is given.", remedy="Name one, e.g. demo, a folder or a .gguf file.")
    _check(source.dtype in COMPUTE_DTYPES, "--dtype", source.dtype, "one of " + ", ".join(COMPUTE_DTYPES))
    quantization = source.quantization
    _check(quantization in QUANTIZATIONS, "--quantization", quantization, "one of " + ", ".join(QUANTIZATIONS))
    length = source.max_model_len
    allowed = f"at least 2 (a prompt and its first output token) and at most {INT32_MAX}, or -1 (auto) for what fits"
    _check(length is None or length == -1 or 2 <= length <= INT32_MAX, "--max-model-len", length, allowed)


def _check(holds: bool, flag: str, value: object, allowed: str) -> None:  # noqa: FBT001
    if not holds:
        raise ConfigError(f"{flag} is {value}.", remedy=f"It must be {allowed}.")
