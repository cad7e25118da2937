from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.planning.devices import find_devices, known_devices


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("h200", "h200", 1),
        ("H200x8", "h200", 8),
        ("8xh200", "h200", 8),
        ("RTX 4090", "rtx-4090", 1),
        ("l40s*2", "l40s", 2),
    ],
)
def test_devices_are_found_by_name_and_number(text: str, name: str, count: int) -> None:
    device, found = find_devices(text, known_devices())
    assert (device.name, found) == (name, count)


def test_every_device_has_plausible_numbers_and_says_where_they_are_from() -> None:
    for name, device in known_devices().items():
        assert name == device.name == name.lower()
        assert 2**33 < device.memory_bytes < 2**39
        if device.bandwidth_bytes_per_s:
            assert 10**11 < device.bandwidth_bytes_per_s < 2 * 10**13
            assert any(word in device.source for word in ("data sheet", "product brief", "specifications"))
        else:
            assert "no data sheet found" in device.source
        assert len(device.source) > 10
        if "MiB" in device.source:
            stated = device.source.split("nvidia-smi: ")[1].split(" MiB")[0]
            assert device.memory_bytes == int(stated) * 2**20
        elif "rocm-smi" in device.source:
            assert f"rocm-smi: {device.memory_bytes} bytes" in device.source
        else:
            assert "not seen reported by a driver" in device.source


def test_an_unknown_device_is_refused_with_near_names() -> None:
    with pytest.raises(ConfigError, match="Did you mean h200"):
        find_devices("h20x4", known_devices())
    with pytest.raises(ConfigError, match="--gpu is h200x0"):
        find_devices("h200x0", known_devices())


@pytest.mark.parametrize("text", ["h200x-1", "h200x", "h200x2.5", "h200xeight", "x8", "-1xh200", "", "  "])
def test_a_number_of_devices_that_is_none_is_told_apart_from_an_unknown_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"NAMExN.*h200x8") as e:
        find_devices(text, known_devices())
    assert "Did you mean" not in str(e.value)


def test_a_users_file_adds_devices_and_replaces_them(tmp_path: Path) -> None:
    own = tmp_path / "mine.json"
    own.write_text('[{"name": "My-Card", "memory_bytes": "48GiB"}, {"name": "h200", "memory_bytes": 5, "source": "x"}]')
    known = known_devices(own)
    assert find_devices("my-cardx2", known)[0].memory_bytes == 48 * 2**30
    assert known["h200"].memory_bytes == 5
    assert known["b200"] == known_devices()["b200"]


@pytest.mark.parametrize("text", ["{}", "[", '[{"name": "a"}]', '[{"name": "a", "memory_bytes": 0}]', '[{"nam": 1}]'])
def test_a_file_that_is_no_list_of_devices_is_refused(tmp_path: Path, text: str) -> None:
    own = tmp_path / "mine.json"
    own.write_text(text)
    with pytest.raises(ConfigError):
        known_devices(own)
    with pytest.raises(ConfigError, match="cannot be read"):
        known_devices(tmp_path / "absent.json")
