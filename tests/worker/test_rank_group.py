"""Ranks meet and talk: here each is a thread."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from octavo.config import ParallelConfig
from octavo.errors import ConfigError, ExecutorError
from octavo.messages import Rendezvous
from octavo.worker.rank_group import Place, RankGroup, join_ranks

T = TypeVar("T")
CPU = torch.device("cpu")


def together(
    parallel: ParallelConfig, rendezvous: Rendezvous, act: Callable[[RankGroup], T], *, absent: tuple[int, ...] = ()
) -> list[T]:
    """What `act` gives for each rank that is there, in order."""

    def run(rank: int) -> T:
        group = join_ranks(parallel, rendezvous, global_rank=rank, device=CPU)
        try:
            return act(group)
        finally:
            group.close()
            group.close()

    ranks = [rank for rank in range(parallel.world_size) if rank not in absent]
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def by_file(folder: Path) -> Rendezvous:
    return Rendezvous(path=str(folder / "ranks"))


def by_network(folder: Path) -> Rendezvous:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Rendezvous(host="127.0.0.1", port=free.getsockname()[1])


@pytest.mark.parametrize("meet", [by_file, by_network])
def test_two_stages_of_three_ranks(meet: Callable[[Path], Rendezvous], tmp_path: Path) -> None:
    def act(group: RankGroup) -> tuple[object, ...]:
        assert group.tensor is not None and group.pipeline is not None
        rank = 3 * group.place.stage + group.place.tensor_rank
        number = torch.tensor([float(10**rank)])
        total = float(group.tensor.all_reduce(number.clone()))
        members = [float(found) for found in group.tensor.all_gather(number)]
        first = float(group.pipeline.broadcast(number.clone(), 0))
        if group.pipeline.index == 0:
            group.pipeline.send(number, 1)
            received = 0.0
        else:
            received = float(group.pipeline.receive(torch.zeros(1), 0))
        assert group.tensor.index == group.place.tensor_rank and group.pipeline.index == group.place.stage
        return group.place, total, members, first, received, group.tensor.global_ranks, group.pipeline.global_ranks

    found = together(ParallelConfig(tensor_parallel_size=3, pipeline_parallel_size=2), meet(tmp_path), act)
    stages = [[1.0, 10.0, 100.0], [1e3, 1e4, 1e5]]
    for rank, row in enumerate(found):
        stage, place = divmod(rank, 3)
        assert row == (
            (stage, place),
            sum(stages[stage]),
            stages[stage],
            stages[0][place],
            stages[0][place] if stage else 0.0,
            tuple(range(3 * stage, 3 * stage + 3)),
            (place, place + 3),
        )


def test_one_rank_meets_nobody() -> None:
    group = join_ranks(ParallelConfig(), Rendezvous(), global_rank=0, device=CPU)
    assert group.tensor is None and group.pipeline is None
    assert group.place == Place(stage=0, tensor_rank=0)


def test_one_direction_alone_has_no_group_of_the_other(tmp_path: Path) -> None:
    def has(group: RankGroup) -> tuple[bool, bool]:
        return group.tensor is not None, group.pipeline is not None

    assert (
        together(ParallelConfig(tensor_parallel_size=2), Rendezvous(path=str(tmp_path / "a")), has)
        == [(True, False)] * 2
    )
    assert (
        together(ParallelConfig(pipeline_parallel_size=2), Rendezvous(path=str(tmp_path / "b")), has)
        == [(False, True)] * 2
    )


@pytest.mark.parametrize("meet", [by_file, by_network])
def test_ranks_that_do_not_come_are_named(meet: Callable[[Path], Rendezvous], tmp_path: Path) -> None:
    place = meet(tmp_path)
    few = Rendezvous(path=place.path, host=place.host, port=place.port, timeout_s=0.5)
    with pytest.raises(ExecutorError, match=r"waited 0\.5 s for the other 4 ranks, and ranks 2, 4 did not") as caught:
        together(ParallelConfig(tensor_parallel_size=5), few, lambda group: None, absent=(2, 4))
    assert caught.value.numbers["missing"] == [2, 4]


def test_nobody_said_where_to_meet() -> None:
    with pytest.raises(ConfigError, match="2 ranks, and rank 1 was not told where to meet"):
        join_ranks(ParallelConfig(tensor_parallel_size=2), Rendezvous(), global_rank=1, device=CPU)


def test_an_address_that_is_not_ours_and_one_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = Rendezvous(host="127.0.0.1", port=taken.getsockname()[1], timeout_s=0.5)
        with pytest.raises(ExecutorError, match=rf"Rank 0 cannot listen at 127\.0\.0\.1:{busy.port}"):
            join_ranks(ParallelConfig(tensor_parallel_size=2), busy, global_rank=0, device=CPU)
    with pytest.raises(ExecutorError, match=rf"Rank 1 cannot reach rank 0 at 127\.0\.0\.1:{busy.port}"):
        join_ranks(ParallelConfig(tensor_parallel_size=2), busy, global_rank=1, device=CPU)


def test_a_peer_that_leaves_is_noticed(tmp_path: Path) -> None:
    def act(group: RankGroup) -> str:
        assert group.tensor is not None
        if group.tensor.index == 1:
            return "left"
        with pytest.raises(ExecutorError, match="Rank 0 could not add up with ranks 0, 1") as caught:
            group.tensor.all_reduce(torch.zeros(4))
        return str(caught.value.numbers["rank"])

    assert together(ParallelConfig(tensor_parallel_size=2), by_file(tmp_path), act) == ["0", "left"]
