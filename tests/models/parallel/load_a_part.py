"""A rank that loads its part of a model and says what that took, in bytes: run as a program by `test_rank_memory`.

python -m tests.models.parallel.load_a_part MODEL MEETING_FILE RANK TENSOR_PARALLEL_SIZE PIPELINE_SIZE
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from octavo.attention.torch_reference import TorchReference
from octavo.config import ModelSource, ParallelConfig, read_environment
from octavo.messages import Rendezvous
from octavo.models import loader
from octavo.models.opening import open_model
from octavo.models.stage import PipelinePlace
from octavo.worker.rank_group import Place, join_ranks

_EVERY_S = 0.002


def in_memory(field: str) -> int:
    """A figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) << 10


@contextmanager
def watch_peak() -> Iterator[list[int]]:
    """The most memory that is no file's so far, above what there was at the beginning."""
    before, peak, done = in_memory("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_S):
            peak[0] = max(peak[0], in_memory("RssAnon") - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        done.set()
        watching.join()


def main(model: str, meeting: str, rank: int, size: int, num_stages: int) -> None:
    parallel = ParallelConfig(tensor_parallel_size=size, pipeline_parallel_size=num_stages)
    rendezvous = Rendezvous(path=meeting, num_local_ranks=parallel.world_size, timeout_s=120)
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    group = join_ranks(parallel, rendezvous, global_rank=rank, device=cpu)
    place = Place.of(rank, parallel)
    given: dict[str, Any] = {"device": cpu, "dtype": torch.float32, "backend": TorchReference()}
    adapt, until_loaded = loader.adapt_model, [0]
    with watch_peak() as peak:

        def adapting(*args: Any, **kwargs: Any) -> Any:
            until_loaded[0] = peak[0]
            return adapt(*args, **kwargs)

        loader.adapt_model = adapting
        _, loaded = open_model(
            ModelSource(model=model, max_model_len=64),
            read_environment(),
            block_size=16,
            kv_cache_dtype="auto",
            place=PipelinePlace(place.stage, num_stages),
            peers=group.tensor,
            **given,
        )
    figures = {"loading": until_loaded[0], "peak": peak[0], "weights": loaded.weight_bytes}
    print(json.dumps(figures))
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
