from __future__ import annotations

import torch

from octavo.models.call_cache import CallCache


def inputs(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count).float().view(1, 1, count)


def test_a_convolution_sees_zeros_before_a_request_and_keeps_its_last_inputs() -> None:
    cache = CallCache()
    assert cache.get_conv_state(3) is None
    assert cache.update_conv_state(inputs(1, 2), 3, conv_kernel_size=4).tolist() == [[[0, 0, 1, 2]]]
    assert cache.convolutions[0].tolist() == [[[0, 0, 1, 2]]]
    assert cache.update_conv_state(inputs(3, 3), 3, conv_kernel_size=4).tolist() == [[[0, 0, 1, 2, 3, 4, 5]]]
    assert cache.convolutions[0].tolist() == [[[2, 3, 4, 5]]]
    assert cache.layer_indices == {3}


def test_a_long_first_run_is_not_padded() -> None:
    cache = CallCache()
    assert cache.update_conv_state(inputs(1, 5), 0, conv_kernel_size=3).shape == (1, 1, 5)
    assert cache.convolutions[0].tolist() == [[[3, 4, 5]]]


def test_recurrences_are_kept_as_they_are_under_both_names() -> None:
    cache = CallCache()
    assert not cache.has_previous_state()
    cache.set_linear_cache(1, torch.ones(1, 2))
    assert cache.get_linear_cache(1) is cache.get_recurrent_state(1)
    cache.update_recurrent_state(torch.zeros(1, 2), 1, state_idx=2)
    assert sorted(cache.recurrences) == [0, 2]
    assert cache.has_previous_state()


def test_keys_and_values_come_straight_back() -> None:
    cache = CallCache()
    key, value = torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3)
    assert cache.update(key, value, 0, {"sin": None}) == (key, value)
    assert (cache.get_seq_length(), cache.is_recording_past(0)) == (0, False)
