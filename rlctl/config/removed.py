"""What earlier versions took in a serve configuration, and what to use instead."""

from __future__ import annotations

_EXPORTER = "use `kind: prometheus` with an exporter, or `kind: jsonl` with a log of requests"

REMOVED = {
    "approve": "leave it out: review changes in the repository that this file comes from",
    "resources.node_power": "leave it out: `package_watts` is read by itself; ipmi_exporter has the whole machine",
    "be.applications.socket": "leave it out: applications read their mode from the file RLCTL_MODE_FILE",
    "lc.latency.kind: redis": _EXPORTER,
    "lc.latency.kind: otlp": f"{_EXPORTER}; an OpenTelemetry collector exports to Prometheus",
}
"""By the key's path from the top, list indices left out; with `: value` where only that value was removed."""
