"""`kind: tcp` beside real services: it counts requests and sees misses as their client does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.envs.testbed.memcached import Memcached
from rlctl.envs.testbed.nginx import Nginx
from rlctl.envs.testbed.workloads import LcProgram
from rlctl.envs.workload import SLO
from scripts.studies.bench.tcp import compare, free_port, running, summary
from tests.needs import needs

pytestmark = [pytest.mark.host, pytest.mark.slow]


@pytest.mark.parametrize(("kind", "rate"), [(Nginx, 100.0), (Memcached, 2000.0)])
def test_kernel_and_client_agree(kind: type[LcProgram], rate: float, tmp_path: Path) -> None:
    """The count of requests within a tenth, and misses of a coarse target on the client's side."""
    needs(programs=(kind.name, "cc"), cpus=2)
    slo = SLO(target_seconds=0.040, quantile=0.95, max_load_rps=1e6)
    with running(kind(address=("127.0.0.1", free_port())), tmp_path) as service:  # type: ignore[call-arg]
        found, cost = compare(service, (rate,), 5, slo)
    told = summary(found, slo.target_seconds)
    assert told["count off by %"] < 10.0, (told, found)
    assert told["same side %"] >= 75.0, (told, found)
    assert "of a core" in cost
