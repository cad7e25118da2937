"""Routes about the server itself, keys, limits, crashes, and clients that go away."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from tests.server.running import RunningServer, running

COMPLETE = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "a" * 900, "max_tokens": 900}


def test_routes_about_the_server(server: RunningServer) -> None:
    get = server.http.get
    assert (get("/health").status_code, get("/health").content) == (200, b"")
    assert get("/ping").status_code == server.http.post("/ping").status_code == 200
    assert get("/version").json() == {"version": "1.2.3"}
    assert get("/load").json() == {"server_load": 0}
    models = get("/v1/models").json()
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("fake", 1000), ("other", 1000)]
    assert get("/tokenizer_info").json()["eos_token"] == "<eos>"
    assert server.http.post("/reset_prefix_cache").json() == {"reset": True}


def test_texts_become_tokens_and_back(server: RunningServer) -> None:
    document = server.post("/tokenize", prompt="ab", return_token_strs=True).json()
    assert document == {"count": 3, "max_model_len": 1000, "tokens": [256, 97, 98], "token_strs": ["<bos>", "a", "b"]}
    assert server.post("/tokenize", prompt="ab", add_special_tokens=False).json()["tokens"] == [97, 98]
    chat = server.post("/tokenize", messages=[{"role": "user", "content": "x"}]).json()
    assert server.post("/detokenize", tokens=chat["tokens"]).json() == {"prompt": "<user>x<assistant>"}
    both = {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}
    assert server.post("/tokenize").status_code == server.post("/tokenize", **both).status_code == 400
    assert server.post("/tokenize", messages=[]).status_code == 400
    headers = {"content-type": "application/json"}
    half = server.http.post("/tokenize", content=b'{"prompt": "\\ud800"}', headers=headers)
    assert "surrogate" in half.json()["error"]["message"]
    assert server.post("/detokenize", tokens=[-1]).status_code == 400
    assert server.post("/detokenize", tokens=[2**70]).status_code == 400


TURN = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "Give either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": TURN}, "Give either prompt or messages"),
        ("/tokenize", {"prompt": 5}, "prompt is 5. Input should be a valid string."),
        ("/tokenize", {"prompt": "\ud800"}, "lone surrogate"),
        ("/tokenize", {"messages": []}, "messages is []. List should have at least 1 item"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "has no content"),
        ("/tokenize", {"messages": [5]}, "messages.0 is 5. Input should be a valid dictionary."),
        ("/tokenize", {"messages": TURN, "tools": [{"type": "function"}]}, "has no function with a name"),
        ("/tokenize", {"messages": TURN, "tools": [{"function": {"name": 5}}]}, "has no function with a name"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "maybe"}, "add_special_tokens is 'maybe'. Input should be"),
        ("/v1/chat/completions", {"messages": TURN, "tools": [{}]}, "has no function with a name"),
        ("/detokenize", {}, "tokens is missing."),
        ("/detokenize", {"tokens": [-1]}, "-1 in tokens is no token id: they go from 0 to 319"),
        ("/detokenize", {"tokens": [65, 320]}, "320 in tokens is no token id"),
        ("/detokenize", {"tokens": [10**30]}, "in tokens is no token id"),
        ("/detokenize", {"tokens": [1.5]}, "tokens.0 is 1.5. Input should be a valid integer"),
        ("/detokenize", {"tokens": [[65]]}, "tokens.0 is [65]. Input should be a valid integer"),
    ],
)
def test_what_cannot_be_turned_into_tokens_or_back_is_400(
    server: RunningServer, path: str, body: dict[str, Any], words: str
) -> None:
    answer = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert words in error["message"]


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), (COMPLETE, 405)])
def test_errors_of_http_have_openais_shape(server: RunningServer, path: str, status: int) -> None:
    answer = server.http.get(path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_unknown_fields_are_logged_once(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert server.post(COMPLETE, prompt="a", strange_field=[1]).status_code == 200
    told = [record.getMessage() for record in caplog.records if "strange_field" in record.getMessage()]
    assert told == ["Requests have the field 'strange_field', which has no effect here."]


def test_metrics_have_the_names_that_dashboards_ask_for(server: RunningServer) -> None:
    server.post(COMPLETE, prompt="abc", max_tokens=2)
    text = server.http.get("/metrics").text
    for name in (
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_requests_running",
        "http_requests_total", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_count",
        "vllm:request_success_total",
        "octavo:kv_cache_free_tokens",
    ):  # fmt: skip
        assert f"\n{name}{{" in text
    assert 'vllm:cache_config_info{block_size="16",capacity_tokens=' in text
    assert server.meter.line(time.perf_counter()) is not None


def test_keys_are_asked_for_and_keep_prefixes_apart(fake_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(api_keys=("key-a", "key-b")) as server:
        for path in ("/health", "/ping", "/version", "/metrics"):
            assert server.http.get(path).status_code == 200
        answer = server.post(COMPLETE, prompt="a")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert server.http.get("/v1/models", headers={"Authorization": "Bearer key-c"}).status_code == 401
        salts, owners = [], []
        add = server.engine._client.add_requests

        def note(sequences: Any) -> None:
            salts.append(sequences[0].cache_salt)
            owners.append(sequences[0].owner)
            add(sequences)

        monkeypatch.setattr(server.engine._client, "add_requests", note)
        for key, more in (("key-a", {}), ("key-b", {}), ("key-a", {}), ("key-a", {"cache_salt": "s"})):
            headers = {"Authorization": f"Bearer {key}"}
            answer = server.http.post(COMPLETE, json={"prompt": "a", **more}, headers=headers)
            assert answer.status_code == 200
        assert salts[0] == salts[2]
        assert len(set(salts)) == 3
        assert owners[0] == owners[2] == owners[3] != owners[1]
        assert all("key" not in salt for salt in salts)


def test_a_body_that_is_too_long_is_refused(fake_process: None) -> None:
    with running(max_request_bytes=1000) as server:
        assert server.post(COMPLETE, prompt="a" * 1000).status_code == 413

        def pieces() -> Any:
            for _ in range(20):
                yield b" " * 100

        answer = server.http.post(COMPLETE, content=pieces(), headers={"content-type": "application/json"})
        assert answer.status_code == 413
        assert server.post(COMPLETE, prompt="a" * 100).status_code == 200


def test_too_many_requests_are_told_when_to_come_again(fake_process: None) -> None:
    with running("fake-slow", max_num_seqs=2, max_waiting=1) as server:
        body = {"prompt": "a" * 60, "max_tokens": 60}
        threads = [
            threading.Thread(target=lambda: httpx.post(server.url + COMPLETE, json=body, timeout=30)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        server.until(lambda: server.gate.num_sequences == 3)
        for stream in (False, True):
            answer = server.post(COMPLETE, prompt="a", stream=stream)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert "3 sequences" in answer.json()["error"]["message"]
        assert "vllm:admission_rejections_total{" in (text := server.http.get("/metrics").text)
        assert 'reason="max_num_queued_reqs"} 2.0' in text
        for thread in threads:
            thread.join()
        assert server.post(COMPLETE, prompt="a").status_code == 200


def test_a_request_that_takes_too_long_is_ended(fake_process: None) -> None:
    with running("fake-slow", request_timeout_s=0.3) as server:
        answer = server.post(COMPLETE, **LONG)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
        text = server.post(COMPLETE, **LONG, stream=True).text
        assert '"code":"request_timeout"' in text
        assert text.endswith("data: [DONE]\n\n")


def test_a_request_may_bring_its_own_time(fake_process: None) -> None:
    with running("fake-slow", request_timeout_s=60) as server:
        short = {"X-Request-Timeout": "0.3"}
        answer = server.http.post(COMPLETE, json=LONG, headers=short)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
        text = server.http.post(COMPLETE, json={**LONG, "stream": True}, headers=short).text
        assert '"code":"request_timeout"' in text
        assert server.http.post(COMPLETE, json={"prompt": "a"}, headers={"X-Request-Timeout": "30"}).status_code == 200
        for wrong in ("soon", "0", "-1", "nan", "inf", ""):
            answer = server.http.post(COMPLETE, json={"prompt": "a"}, headers={"X-Request-Timeout": wrong})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Request-Timeout"), wrong


def test_no_request_takes_longer_than_the_server_lets_it(fake_process: None) -> None:
    with running("fake-slow", request_timeout_s=0.3) as server:
        answer = server.http.post(COMPLETE, json=LONG, headers={"X-Request-Timeout": "60"})
        assert answer.status_code == 504


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(fake_process: None, stream: bool) -> None:
    with running("fake-slow") as server:
        body = httpx.Request("POST", server.url, json={**LONG, "stream": stream}).read()
        head = f"POST {COMPLETE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            server.until(lambda: (stats := server.engine.stats()) is not None and stats.num_used_blocks)
        gone = time.monotonic()
        server.until(server.is_idle)
        assert time.monotonic() - gone < 2


def test_a_slow_reader_keeps_nobody_waiting(fake_process: None) -> None:
    with running() as server, server.http.stream("POST", COMPLETE, json={**LONG, "stream": True}) as slow:
        lines = slow.iter_lines()
        next(lines)
        for _ in range(5):
            answer = httpx.post(server.url + COMPLETE, json={"prompt": "ab"})
            assert answer.json()["choices"][0]["text"] == "ba"
        assert sum(line.startswith("data: ") for line in lines) > 1


def test_a_crash_is_503_and_red_until_the_core_is_back(fake_process: None) -> None:
    with running("fake-slow") as server:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(server.post(COMPLETE, **LONG)))
        asking.start()
        body = {**LONG, "stream": True}
        with httpx.stream("POST", server.url + COMPLETE, json=body, timeout=20) as streaming:
            lines = streaming.iter_lines()
            next(lines)
            server.until(lambda: server.gate.num_sequences == 2)
            os.kill(server.engine.core_pid, signal.SIGKILL)
            rest = [line for line in lines if line]
        asking.join(5)
        assert '"code":"engine_unavailable"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert answers[0].status_code == 503
        assert "signal 9" in answers[0].json()["error"]["message"]
        red = server.http.get("/health")
        assert (red.status_code, red.json()["error"]["type"]) == (503, "service_unavailable")
        assert server.post(COMPLETE, prompt="a").status_code == 503
        server.until(lambda: server.http.get("/health").status_code == 200)
        assert server.post(COMPLETE, prompt="ab").json()["choices"][0]["text"] == "ba"
        assert (
            'octavo:engine_core_starts_total{engine="0",model_name="fake-slow"} 2.0' in server.http.get("/metrics").text
        )


def test_several_cores_behind_one_server(fake_process: None) -> None:
    with running(data_parallel_size=2, api_keys=("key-a", "key-b")) as server:
        keys = {key: {"Authorization": f"Bearer {key}"} for key in ("key-a", "key-b")}

        def computed() -> list[float]:
            text = server.http.get("/metrics").text
            name = 'vllm:prompt_tokens_total{engine="%d",model_name="fake"} '
            return [float(text.partition(name % engine)[2].split()[0]) for engine in (0, 1)]

        def ask(key: str) -> None:
            body = {"prompt": "x" * 60, "max_tokens": 2}
            assert server.http.post(COMPLETE, json=body, headers=keys[key]).status_code == 200

        for _ in range(3):
            ask("key-a")
        assert computed() == [3 * 61, 0], "the same prefix goes to the same core"
        ask("key-b")
        assert computed() == [3 * 61, 61], "another key's prefix is another one, and goes where the cache is emptier"
        assert 'vllm:cache_config_info{block_size="16",' in server.http.get("/metrics").text


def test_a_server_that_is_ending_takes_nothing_new(fake_process: None) -> None:
    with running() as server:
        server.gate.is_closed = True
        answer = server.post(COMPLETE, prompt="a")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")


def test_an_accident_is_told_without_its_details(fake_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        monkeypatch.setattr(server.engine, "prepare", lambda *_, **__: 1 // 0)
        answer = server.post(COMPLETE, prompt="a")
        assert answer.status_code == 500
        assert "division" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"
