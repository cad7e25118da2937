"""What the engine's observer is told ends up in the metrics; nothing of a request stays behind."""

from __future__ import annotations

from octavo.engine.input_processor import PromptRequest
from octavo.engine.observer import EngineObserver
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.errors import EngineDeadError
from octavo.messages import CoreReady
from octavo.observe.metrics import EngineMetrics, ThroughputMeter
from octavo.request import FinishReason, SamplingParams
from octavo.server.watch import MetricsObserver
from octavo.server.watchdog import Watchdog
from tests.engine.fake_core_process import FAKE_MODEL
from tests.engine.fake_plan import FAKE_PLAN


def test_requests_come_and_go() -> None:
    metrics = EngineMetrics("m")
    watchdog = Watchdog(metrics, timeout_s=0)
    observer = MetricsObserver(metrics, ThroughputMeter("CPU"), watchdog)
    _: EngineObserver = observer
    observer.engine_ready(CoreReady(plan=FAKE_PLAN, model_config=FAKE_MODEL, max_model_len=9))
    requests = [
        PromptRequest(request_id=str(n), prompt=None, prompt_token_ids=[1], sampling=SamplingParams(n=n))
        for n in (1, 2, 3)
    ]
    for request in requests:
        observer.request_arrived(request, 1.0)
    done = CompletionOutput(index=0, text="", token_ids=[1], finish_reason=FinishReason.STOP)
    observer.request_finished(
        RequestOutput(request_id="1", prompt=None, prompt_token_ids=[1], outputs=[done], finished=True), 2.0
    )
    observer.request_failed(requests[1], None, 2.0)
    observer.request_failed(requests[2], EngineDeadError("x"), 2.0)
    text = metrics.exposition().decode()
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 2.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="error",model_name="m"} 3.0' in text
    assert 'octavo:requests_given_up_total{model_name="m"} 1.0' in text
    assert 'octavo:request_failures_total{model_name="m"} 1.0' in text
    assert metrics._sequences == {}
    assert observer._num_unfinished == 0
