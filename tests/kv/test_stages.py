from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.kv.stages import of_stage, split_layers


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "counts"),
    [(32, 1, [32]), (32, 2, [16, 16]), (61, 2, [31, 30]), (62, 4, [15, 16, 16, 15]), (5, 4, [1, 1, 2, 1])],
)
def test_what_is_left_over_goes_to_the_stages_before_the_last(
    num_layers: int, num_stages: int, counts: list[int]
) -> None:
    stages = split_layers(num_layers, num_stages)
    assert [len(stage) for stage in stages] == counts
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))


def test_uneven_stages_are_as_asked_for() -> None:
    assert split_layers(48, 2, (16, 32)) == (range(16), range(16, 48))


@pytest.mark.parametrize("wanted", [(16, 31), (48,), (48, 0)])
def test_stages_that_do_not_add_up_are_refused(wanted: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="2 numbers of at least 1 that add up to 48"):
        split_layers(48, 2, wanted)


def test_layers_of_stages_without_a_number_of_stages_are_refused_with_the_flag_that_is_missing() -> None:
    with pytest.raises(ConfigError, match="Set --pipeline-parallel-size to 2, or leave out --pipeline-layers"):
        split_layers(62, 1, (31, 31))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="the model has 3 layers"):
        split_layers(3, 4)


def test_what_is_said_of_a_stages_layers() -> None:
    named = {"layers.1": "a", "layers.2": "b", "layers.2.state": "c", "layers.12": "d"}
    assert of_stage(named, range(2, 4)) == {"layers.2": "b", "layers.2.state": "c"}
    assert of_stage(named, range(12, 13)) == {"layers.12": "d"}
