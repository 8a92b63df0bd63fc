"""Settings that every floor's tests share, and bundles made without torch."""

import contextlib
import ctypes
import fcntl
import importlib
import os
import pkgutil
import shutil
import signal
import struct
import tempfile

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings, strategies

import rlctl

common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("default", common, max_examples=15, derandomize=True)  # `random` has the new and the many
settings.register_profile("random", common, max_examples=400)
settings.load_profile("default")

LIVE = pytest.StashKey[int]()
"""Lock held by the session whose live tests run: those of two checkouts on one machine take turns."""

NO_RAY = "Ray is not installed: scripts/install dev,train,data,docs,distributed"
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h

signal.signal(signal.SIGINT, signal.default_int_handler)
"""As in a terminal: a shell has its background jobs ignore Ctrl-C, and what we start would, too."""


def pytest_collection_modifyitems(config, items):
    """A test of another machine is none of this one's, and no skip either."""
    from rlctl.envs.host.cgroup.layout import Layout

    absent = set() if "RLCTL_GUEST" in os.environ else {"guest"}
    if any(item.get_closest_marker("cgroup2") for item in items) and Layout.detect().kind != "v2":
        absent.add("cgroup2")
    away = [item for item in items if any(item.get_closest_marker(name) for name in absent)]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in set(away)]


def pytest_collection_finish(session):
    """Load all modules: Hypothesis draws constants of those that are loaded, which must not depend on who had which
    test before (workers steal them from one another), or a seed would not repeat its inputs."""
    if "PYTEST_XDIST_WORKER" in os.environ and any(item.get_closest_marker("hypothesis") for item in session.items):
        for module in pkgutil.walk_packages(rlctl.__path__, "rlctl."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):  # an extra that is not installed
                    importlib.import_module(module.name)
        _draw()  # the first draw reads those modules, which takes seconds that no test's limit has on a busy machine
    live = any(item.get_closest_marker("host") for item in session.items)
    if not live:  # no fake host loses power: what a crash leaves is tried by ends of processes
        os.fsync = os.fdatasync = os.fstat
    if live and "PYTEST_XDIST_WORKER" in os.environ:  # one would wait for the other, before any test has begun
        raise pytest.UsageError("live tests run alone: leave them out by -m 'not host', or leave -n out")
    if live and not session.config.option.collectonly:  # not in a test, whose time is limited
        file = f"{tempfile.gettempdir()}/rlctl-live-tests-{os.getuid()}.lock"
        session.config.stash[LIVE] = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(session.config.stash[LIVE], fcntl.LOCK_EX)  # until this process ends; none that it forks holds it


@given(strategies.integers())
def _draw(_):
    pass


def pytest_runtest_setup(item):
    if item.get_closest_marker("ray"):
        pytest.importorskip("ray", reason=NO_RAY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Ray leaves settings in the environment; its RAY_AUTH_MODE keeps all from clusters without tokens."""
    before = dict(os.environ)
    try:
        return (yield)
    finally:
        if item.get_closest_marker("ray"):
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture
def no_privilege():
    """What a file's permissions say counts, for root as well: this thread gives CAP_DAC_* up until the test is over."""
    header, before = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, before) == 0
    sets = list(struct.unpack("6I", before))  # effective, permitted, inheritable, and the same of the upper 32
    sets[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, struct.pack("6I", *sets)) == 0
    yield
    assert libc.capset(header, before.raw) == 0


@pytest.fixture(scope="session")
def cyclictest():
    """Skips where a real-time task's wake-ups cannot be measured."""
    if shutil.which("cyclictest") is None:
        pytest.skip("cyclictest is not installed: apt-get install rt-tests")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        pytest.skip("may not be real-time: root, or `ulimit -r`")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(scope="session")
def linear():
    """Makes networks of one layer, see `linear_network`."""
    return linear_network


def linear_network(weight, bias):
    """A network of one layer: logits = weight @ observation + bias, with weight of shape (moves, size)."""
    from rlctl.agents.served.network import Network

    return Network((np.asarray(weight, np.float32),), (np.asarray(bias, np.float32),), "tanh")


@pytest.fixture(scope="session")
def make_bundle():
    """Writes a bundle whose policy asks for as large a share as the slack is; `policy` puts another network in."""
    from rlctl.agents.served.bundle_writer import save
    from rlctl.agents.served.card import CardParts, ObservationTable, TrainedOn, Training
    from rlctl.envs.actions import MOVES
    from rlctl.envs.features import FEATURES, FRAME_SIZE
    from rlctl.envs.observation import LAGS
    from rlctl.envs.workload import Weight

    def follow_slack(lags):
        """Aims at the quota nearest to the slack: -(slack - target)**2, but for a part that all targets share."""
        size = ObservationTable.here(lags).size
        slack = (len(lags) - 1) * FRAME_SIZE + [one.name for one in FEATURES].index("slack")  # in the newest frame
        weight, bias = np.zeros((len(MOVES), size)), np.full(len(MOVES), -9.0)
        for place, move in enumerate(MOVES):
            if move.quota_ratio is not None and not move.frozen:
                weight[place, slack], bias[place] = 2.0 * move.quota_ratio, -(move.quota_ratio**2)
        return linear_network(weight, bias)

    def make(folder, *, policy=None, lags=LAGS, name="tiny", **parts):
        plant = TrainedOn(profile="thesis-host", digest="0" * 12, weight=Weight.MINIMUM, work=0.12, hosts=4)
        run = Training(
            hyperparameters={"gamma": 0.9}, total_timesteps=1, wall_seconds=1.0, seed=1, code="x", training_id="0" * 64
        )
        said = {"algorithm": "PPO", "tick_seconds": 1.0, "plants": (plant,), "training": run} | parts
        save(folder, name, CardParts(lags=lags, **said), follow_slack(lags) if policy is None else policy)
        return folder

    return make


class RayCluster:
    """A head without CPUs, to which tests connect, and nodes that may die; all are real processes of this machine.

    Attributes:
        address: HOST:PORT, as `--ray` takes it.
        nodes: All but the head.
    """

    def __init__(self):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._folder = tempfile.TemporaryDirectory(prefix="rlctl-ray-", dir="/tmp")  # sockets want a short path
        self._small = {
            "object_store_memory": 80 << 20,
            "include_log_monitor": False,
            "temp_dir": self._folder.name,
        }
        os.makedirs("/tmp/ray", exist_ok=True)  # where it notes its address, whatever the folder
        head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True}
        self._cluster = Cluster(initialize_head=True, head_node_args=head | self._small)
        self.address, self.nodes = self._cluster.address, []

    def add(self, **options):
        """A node of one CPU that is a testbed, unless the options of `Cluster.add_node` say otherwise."""
        made = self._cluster.add_node(**{"num_cpus": 1, "resources": {"testbed": 1}} | self._small | options)
        self.nodes.append(made)
        return made

    def kill(self, node):
        """All its processes at once, as a host that loses power: workers outlive their raylet by seconds otherwise."""
        self._end(node, self._processes(node))

    def crash(self, node):
        """Ray and its workers at once; what workers have started lives on, as on a host whose Ray was killed."""
        raylet, *_ = self._processes(node)
        self._end(node, [raylet, *raylet.children()])

    def _end(self, node, processes):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def running(self, function):
        """The nodes on which a task of this name runs now; its worker takes the name."""
        return [node for node in self.nodes if any(f"ray::{function}" in name for name in self._names(node))]

    def _processes(self, node):
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [raylet, *raylet.children(recursive=True)]

    def _names(self, node):
        for process in self._processes(node):
            with contextlib.suppress(psutil.Error):
                yield from process.cmdline()[:1]

    def to(self, count):
        """As many nodes as are asked for, new ones in place of the dead."""
        while len(self.nodes) > count:
            self.kill(self.nodes[-1])
        while len(self.nodes) < count:
            self.add()
        return self

    def close(self):
        self._cluster.shutdown()
        self._folder.cleanup()


@pytest.fixture(scope="session")
def ray_processes():
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def ray_cluster(ray_processes):
    """A Ray cluster of a head and three nodes; a test may add and kill nodes. Mark such tests `ray`."""
    return ray_processes.to(3)
