"""Which layers lie on which rank: ranks are pipeline stages times tensor-parallel ranks, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from octavo.errors import ConfigError

T = TypeVar("T")


def split_layers(num_layers: int, num_stages: int, wanted: Sequence[int] | None = None) -> tuple[range, ...]:
    """The layers of each pipeline stage, by index.

    `wanted` gives the number of layers of each stage. Without it they are as equal as can be; what is left over goes to
    the stages before the last, which has the head to compute, and the first comes last, which has the embedding.
    Raises `ConfigError` where that is impossible.
    """
    if wanted:
        if num_stages == 1 and len(wanted) > 1:
            raise ConfigError(
                f"--pipeline-layers is {','.join(map(str, wanted))}: {len(wanted)} stages, and "
                "--pipeline-parallel-size is 1.",
                remedy=f"Set --pipeline-parallel-size to {len(wanted)}, or leave out --pipeline-layers.",
            )
        if len(wanted) != num_stages or sum(wanted) != num_layers or min(wanted) < 1:
            raise ConfigError(
                f"--pipeline-layers is {','.join(map(str, wanted))}: {len(wanted)} stages of {sum(wanted)} layers.",
                remedy=f"Give {num_stages} numbers of at least 1 that add up to {num_layers}.",
            )
        counts = list(wanted)
    else:
        if num_stages > num_layers:
            raise ConfigError(
                f"--pipeline-parallel-size is {num_stages}, and the model has {num_layers} layers.",
                remedy=f"Use at most {num_layers}.",
            )
        counts = [num_layers // num_stages] * num_stages
        order = [*range(num_stages - 2, -1, -1), num_stages - 1]
        for stage in order[: num_layers % num_stages]:
            counts[stage] += 1
    starts = [sum(counts[:stage]) for stage in range(num_stages)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))


def of_stage(named: Mapping[str, T], layers: range) -> dict[str, T]:
    """What is said of `layers`, by names such as `layers.3` and `layers.3.state`."""
    return {name: value for name, value in named.items() if int(name.split(".")[1]) in layers}
