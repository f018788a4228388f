"""OpenTelemetry: a span of every request, in the trace of its caller, without any of its text.

The collector's address and headers come from the variables that all OpenTelemetry exporters read,
such as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sapwood import __version__
from sapwood.server.http.access_log import AccessLogEntry


class RequestTracer:
    """Sends a span when a request is over."""

    def __init__(self, model: str, exporter: SpanExporter | None = None) -> None:
        self.model = model
        about = {"service.name": "sapwood", "service.version": __version__}
        self._provider = TracerProvider(resource=Resource.create(about))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("sapwood.server", __version__)

    def watch_response(self, log_entry: AccessLogEntry) -> None:
        """Send the span of a finished request."""
        end = time.time_ns()
        start = end - int(1e9 * (time.monotonic() - log_entry.began))
        route = log_entry.route or "unknown"
        caller = TraceContextTextMapPropagator().extract({"traceparent": log_entry.traceparent})
        span = self._tracer.start_span(
            f"{log_entry.method} {route}", caller, SpanKind.SERVER, start_time=start
        )
        span.set_attributes(
            {
                "http.request.method": log_entry.method,
                "http.route": route,
                "http.response.status_code": log_entry.status,
                "gen_ai.request.model": self.model,
                "gen_ai.usage.input_tokens": log_entry.prompt_tokens,
                "gen_ai.usage.output_tokens": log_entry.completion_tokens,
                "sapwood.request.id": log_entry.id,
            }
        )
        if log_entry.status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end_time=end)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
