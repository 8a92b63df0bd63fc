"""A live host for tests: a plant with what the service asks of a host beside, and a run of the service on it."""

from __future__ import annotations

from types import SimpleNamespace

from rlctl.config.serve import ServeConfig
from rlctl.envs.host.cgroup.group import KNOBS
from rlctl.envs.host.reins.reins import Reins
from rlctl.serve.service import Service
from tests.doubles.plant import FakePlant

LC = {
    "workload": {"kind": "cgroup", "path": "/web"},
    "slo": {"target_milliseconds": 10, "max_load_rps": 480},
    "latency": {"kind": "nginx-log", "path": "/nowhere/access.log"},
}


class FakeHost(FakePlant):
    """A live host as far as the service knows it; its actuator is itself."""

    be_share = None

    watch, inherited, applied, lc_cpus_known = None, False, False, True
    controls = frozenset(KNOBS)
    learned = ()

    def __init__(self, *args, absent=None, **options):
        super().__init__(*args, **options)
        self.actuator, self.absent, self.shares = self, absent or {}, {}
        self.groups, self.effective_share = (), lambda: None
        self.reins = Reins(self)

    def apply(self, allocation):
        self.applied = True
        return super().apply(allocation)

    def plan(self, allocation):
        return ()

    def rehearse(self):
        return 0

    def events(self):
        return ()

    def has_processes(self):
        return True


def open_service(host, setup, stop, folder, *, reloaded=lambda: None, as_json=False, dry_run=False, **sections):
    """The service on a fake host, with its log and its state in a folder, without a watchdog."""
    config = ServeConfig.model_validate(
        {
            "lc": LC,
            "be": {"workloads": [{"kind": "cgroup", "path": "/batch"}]},
            "policy": {"name": "frozen"},
            "state_directory": str(folder),
            "log": {"directory": str(folder)},
            "watchdog": {"enabled": False},
            "tick_seconds": host.tick_seconds,
            **sections,
        }
    )
    configuration = SimpleNamespace(config=config, deciders=setup, take_reload=reloaded)
    return Service(configuration, stop, as_json=as_json, dry_run=dry_run, open_host=lambda *_, **__: host)


def run_service(host, setup, stop, folder, *, seconds=None, **options):
    """Totals of a whole run, from its opening to its end; options as of `open_service`."""
    with open_service(host, setup, stop, folder, **options) as service:
        return service.run(seconds)
