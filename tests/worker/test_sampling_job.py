"""Jobs: rows shared out among threads, each row done once, in lanes of their own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from octavo.attention.team import Team, ThreadTeam, make_team
from octavo.errors import InvariantError
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_job import Job, argmax_entry, describe_entry, sample_entry

VOCAB = 700


@pytest.mark.parametrize("team", [make_team(), ThreadTeam()], ids=["torch's threads", "threads of its own"])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_row_is_done_once_whatever_the_threads(team: Team, num_threads: int) -> None:
    logits = torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(vocab_size=VOCAB, num_threads=num_threads, team=team)
    tokens = logits.argmax(1).numpy()
    for _ in range(20):
        found = sampler.describe(logits, tokens, np.full(37, 2, dtype=np.int32))
        assert [entry.rank for entry in found] == [1] * 37
        assert [entry.token_ids[1] for entry in found] == tokens.tolist()


def test_logits_of_another_vocabulary_are_a_bug() -> None:
    with pytest.raises(InvariantError, match="logits of 5 words for a vocabulary of 700"):
        Job(VOCAB, 1).set_rows(np.zeros((2, 5), np.int32), 2)


def test_entries_are_compiled_once() -> None:
    assert argmax_entry() == argmax_entry()
    assert len({argmax_entry(), sample_entry(), describe_entry()}) == 3


@pytest.mark.slow
def test_a_second_process_compiles_nothing() -> None:
    for entry in (argmax_entry, sample_entry, describe_entry):
        entry()
    program = (
        "import numba.core.event as event\n"
        "from octavo.worker.sampling_job import argmax_entry, describe_entry, sample_entry\n"
        "with event.install_recorder('numba:llvm_lock') as recorder:\n"
        "    addresses = [argmax_entry(), sample_entry(), describe_entry()]\n"
        "import octavo.worker.sampling_kernels as kernels\n"
        "assert not kernels.sample_row.overloads, 'compiled anew'\n"
        "assert not kernels.describe_row.overloads, 'compiled anew'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
