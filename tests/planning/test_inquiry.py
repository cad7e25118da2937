from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.planning.devices import known_devices
from octavo.planning.inquiry import Inquiry, check_inquiry
from octavo.planning.machine import Machine


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"block_size": 0}, "--block-size"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens"),
        ({"max_in_flight_tokens": 0}, "--max-in-flight-tokens"),
        ({"lengths": (5, 0)}, "--lengths"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"dtype": "int8"}, "--dtype"),
        ({"tensor_parallel_size": 5000}, "--tensor-parallel-size"),
        ({"machine": Machine(memory_utilization=0.0)}, "--memory-utilization"),
        ({"machine": Machine(device=known_devices()["h200"], num_devices=2), "tensor_parallel_size": 4}, "h200x4"),
        ({"machine": Machine(device=known_devices()["h200"], memory_bytes=(5,))}, "--gpu and --memory"),
    ],
)
def test_impossible_values_are_refused_by_their_flag(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_inquiry(Inquiry(**wrong))


def test_every_device_of_a_stage_is_a_tensor_parallel_rank_unless_told_otherwise() -> None:
    eight = Machine(device=known_devices()["h200"], num_devices=8)
    assert Inquiry(machine=eight).num_ranks_of_stage == 8
    assert Inquiry(machine=eight, pipeline_parallel_size=2).num_ranks_of_stage == 4
    assert Inquiry(machine=eight, tensor_parallel_size=2).num_ranks_of_stage == 2
    assert Inquiry().num_ranks_of_stage == 1
    check_inquiry(Inquiry(machine=eight))
