"""`kind: tcp` beside real services: it counts requests and sees misses as their client does."""

from __future__ import annotations

import pytest

from rlctl.envs.workload import SLO
from scripts.studies.bench.tcp import LINK, compare, summary
from tests.needs import needs

pytestmark = [pytest.mark.host, pytest.mark.slow]


@pytest.mark.parametrize(("service", "rate"), [("nginx", 100.0), ("memcached", 2000.0), (LINK, 100.0)])
def test_kernel_and_client_agree(service: str, rate: float) -> None:
    """The count of requests within a tenth, and misses of a coarse target on the client's side."""
    needs(programs=(service.partition(",")[0], "cc", "tc", "unshare"), cpus=2)
    slo = SLO(target_seconds=0.040, quantile=0.95, max_load_rps=1e6)
    found, cost = compare(service, (rate,), 5, slo)
    told = summary(found, slo.target_seconds)
    assert told["count off by %"] < 10.0, (told, found)
    assert told["same side %"] >= 75.0, (told, found)
    assert "of a core" in cost
