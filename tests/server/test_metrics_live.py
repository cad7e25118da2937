"""What /metrics says of the cache of a real engine: groups, and the lives of blocks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.parity.tiny import HYBRID, VOCAB_SIZE, write_tokenizer
from tests.server.running import RunningServer, running


def _series(server: RunningServer, name: str) -> dict[str, float]:
    """Label set -> value."""
    lines = server.http.get("/metrics").text.splitlines()
    return {
        line.rpartition(" ")[0].removeprefix(name): float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((f"{name}{{", f"{name} "))
    }


def _sum(server: RunningServer, name: str) -> float:
    return sum(_series(server, name).values())


def test_groups_add_up_and_blocks_are_seen_to_live_and_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    write_tokenizer(tmp_path, VOCAB_SIZE)
    options = {
        "load_format": "dummy", "max_model_len": 120, "block_size": 8, "num_blocks_override": 90,
        "kv_memory": "8MiB", "kv_cache_metrics_sample": 1.0,
    }  # fmt: skip
    with running(str(tmp_path), **options) as server:
        groups = server.engine.plan.configs[0].groups
        assert len(_series(server, "octavo:kv_cache_group_used_blocks")) == len(groups) > 1
        kinds = {
            line.partition('kind="')[2].partition('"')[0]
            for line in _series(server, "octavo:kv_cache_group_used_blocks")
        }
        assert kinds == {group.spec.kind for group in groups}
        prompts = [" ".join(f"w{3 + (start * 31 + word) % 300}" for word in range(90)) for start in range(6)]
        for prompt in (*prompts, prompts[-1]):
            answer = server.post("/v1/completions", prompt=prompt, max_tokens=2, ignore_eos=True)
            assert answer.status_code == 200, answer.text
        server.until(server.is_idle)
        server.until(lambda: _sum(server, "octavo:kv_cache_group_cached_blocks"))
        assert _sum(server, "octavo:kv_cache_group_used_blocks") == 0
        server.until(
            lambda: _sum(server, "octavo:kv_cache_group_cached_blocks") == _sum(server, "octavo:kv_cache_cached_blocks")
        )
        num_ended = _sum(server, "vllm:kv_block_lifetime_seconds_count")
        assert num_ended == _sum(server, "vllm:kv_block_idle_before_evict_seconds_count") > 10
        lived, idle = (_sum(server, f"vllm:kv_block_{name}_seconds_sum") for name in ("lifetime", "idle_before_evict"))
        assert 0 < idle <= lived
        assert _sum(server, "vllm:kv_block_reuse_gap_seconds_count") > 0, "the last prompt was asked twice"
        assert _sum(server, "vllm:request_prefill_kv_computed_tokens_sum") < 7 * 90
