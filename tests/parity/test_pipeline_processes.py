"""Pipelines whose stages are processes: the tokens of one rank, and one error when a rank dies."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import OctavoError, UnsupportedModelError
from tests.executor.test_multiproc import ranks_of
from tests.models.architectures import save_model
from tests.parity.tiny import HYBRID
from tests.parity.toy import Toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("hybrid"), HYBRID, lengths=(1, 17, 33, 70), forks=(16, 36))


def test_two_processes_give_the_tokens_of_one_and_a_dead_one_ends_both(toy: Toy) -> None:
    """One start: first that it is right, then that it is gone."""
    order = list(range(len(toy.prompts)))
    llm = toy.llm(pipeline_parallel_size=2, kv_memory="2MiB,1MiB", max_num_batched_tokens=37, block_size=4)
    try:
        processes = ranks_of(os.getpid())
        assert len(processes) == 2
        toy.check(llm, order)
        assert toy.check(llm, order) > 50
        assert all(process.is_running() for process in processes)
        # The second stage waits for the first one, which is not there any more.
        first = min(processes, key=lambda process: process.create_time())
        os.kill(first.pid, signal.SIGKILL)
        before = time.monotonic()
        outputs = llm.generate(
            [{"prompt_token_ids": [5, 6, 7]}], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False
        )
        pytest.fail(f"no error: {outputs}")
    except OctavoError as error:
        assert "was killed by SIGKILL; all ranks were stopped" in str(error)
        assert time.monotonic() - before < 10
    finally:
        llm.shutdown()
    assert not ranks_of(os.getpid())


def test_a_stage_that_refuses_its_model_ends_the_start(tmp_path: Any) -> None:
    save_model("gemma3n_text", tmp_path)
    with pytest.raises(UnsupportedModelError, match="reads the cache of layer 0, which lies in another pipeline stage"):
        LLM(str(tmp_path), pipeline_parallel_size=2, kv_memory="4MiB")
    assert not ranks_of(os.getpid())
