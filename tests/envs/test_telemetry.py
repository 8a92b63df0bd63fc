"""The latency that counts, when the quantile lies or is absent."""

from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why

NONE = Missing(Why.NO_DATA)


def reading(tail=None, oldest=None):
    return Telemetry(0.0, 0.010, tail_latency_seconds=tail or NONE, oldest_request_seconds=oldest or NONE)


def test_stalled_server_is_not_fast():
    stalled = reading(Quantile(0.001, samples=5, window_seconds=1.0), Value(0.9))
    assert stalled.latency_seconds.value == 0.9
    assert stalled.slack_ratio < 0


def test_nothing_completed_and_old_request_outstanding_is_violation():
    assert reading(oldest=Value(0.5)).slack_ratio == (0.010 - 0.5) / 0.010


def test_nothing_completed_and_young_request_says_nothing_yet():
    assert reading(oldest=Value(0.001)).slack_ratio is None


def test_the_quantile_counts_when_the_oldest_is_younger():
    assert reading(Quantile(0.004, samples=100), Value(0.001)).slack_ratio == 0.6


def test_without_source_there_is_no_slack():
    assert reading().slack_ratio is None
    assert reading().latency_seconds == NONE
    assert Telemetry(0.0, 0.01).cpi.why is Why.NOT_CONFIGURED
