"""What ranks of one group send each other; each is a thread here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed

from octavo.errors import ExecutorError
from octavo.models.peers import Peers

c10d: Any = torch.distributed


def make_peers(size: int) -> list[Peers]:
    """The members of a group, by gloo over loopback."""
    store = c10d.HashStore()

    def make(index: int) -> Peers:
        options = c10d.ProcessGroupGloo._Options()
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return Peers(c10d.ProcessGroupGloo(store, index, size, options), range(10, 10 + size), index)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(make, range(size)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_the_same_bits_on_each(dtype: torch.dtype) -> None:
    peers = make_peers(3)
    parts = [torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        sums = list(pool.map(lambda member: member.all_reduce(parts[member.index].clone()), peers))
        gathered = list(pool.map(lambda member: member.all_gather(parts[member.index]), peers))
    assert torch.equal(sums[0], sums[1]) and torch.equal(sums[1], sums[2])
    torch.testing.assert_close(sums[0], sum(parts[1:], parts[0]), rtol=2e-2, atol=2e-2)
    for found in gathered:
        assert all(torch.equal(got, part) for got, part in zip(found, parts, strict=True))
    for member in peers:
        member.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_16_bits_depends_on_no_place(dtype: torch.dtype) -> None:
    """Whichever order they are added in: 1, and twice what is lost when it is added to 1."""
    peers = make_peers(3)
    small = torch.finfo(dtype).eps / 2
    numbers = [1.0, small, small]
    with ThreadPoolExecutor(3) as pool:
        sums = list(
            pool.map(lambda member: member.all_reduce(torch.full((64,), numbers[member.index]).to(dtype)), peers)
        )
    assert (sums[0] == 1 + torch.finfo(dtype).eps).all(), sums[0]
    for member in peers:
        member.close()


def test_one_tensor_for_all_and_one_for_one() -> None:
    peers = make_peers(3)

    def act(member: Peers) -> tuple[int, int]:
        shared = member.broadcast(torch.tensor([member.index]), 2)
        passed = torch.tensor([100 + member.index])
        if member.index == 0:
            member.send(passed, 1)
        if member.index == 1:
            member.receive(passed, 0)
        return int(shared), int(passed)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(act, peers)) == [(2, 100), (2, 100), (2, 102)]
    assert peers[1].size == 3


def test_a_failure_names_rank_and_group() -> None:
    class Broken:
        def allreduce(self, tensors: list[torch.Tensor]) -> None:
            raise RuntimeError("Connection closed by peer\nException raised from somewhere")

    with pytest.raises(
        ExecutorError, match=r"Rank 5 could not add up with ranks 4, 5: Connection closed by peer\. One of"
    ):
        Peers(Broken(), (4, 5), 1).all_reduce(torch.zeros(1))
