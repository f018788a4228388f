"""Spans of requests: in the caller's trace, with tokens and times, without any text."""

import pytest

from tests.helpers.asgi_client import served

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)

from sapwood.server.tracing import RequestTracer

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_is_a_span_in_the_trace_of_its_caller() -> None:
    exporter = InMemorySpanExporter()
    tracer = RequestTracer("toy", exporter)
    with served() as one:
        one.api.watchers.append(tracer.watch_response)
        body = {"prompt": "a secret", "max_tokens": 3}
        answer = one.post("/v1/completions", body, ("traceparent", CALLER)).json
        assert one.post("/v1/completions", {"prompt": 3}).status == 400
        assert one.post("/v1/completions", body, ("traceparent", "nonsense")).status == 200
    tracer.close()
    first, wrong, alone = exporter.get_finished_spans()
    assert first.name == "POST /v1/completions"
    assert first.parent is not None
    assert f"{first.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{first.parent.span_id:016x}" == CALLER.split("-")[2]
    assert first.attributes is not None
    assert first.attributes["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert first.attributes["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
    assert first.start_time is not None
    assert first.end_time is not None
    assert 0 < first.end_time - first.start_time < 60e9
    assert wrong.attributes is not None
    assert wrong.attributes["http.response.status_code"] == 400
    assert alone.parent is None
    assert "secret" not in first.to_json()
