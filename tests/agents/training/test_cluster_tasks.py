"""Tasks on a real Ray cluster: nothing is lost with a node, and what fails is told in one line.

Functions are nested, so that they get to the workers by value: those cannot import a test.
"""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlctl[distributed]'")

from rlctl.agents.training.cluster import tasks
from rlctl.agents.training.cluster.connection import connected
from rlctl.agents.training.cluster.tasks import map_tasks
from rlctl.envs.errors import CheckFailed, ConfigError, HostError
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def cluster(ray_cluster, tmp_path, monkeypatch):
    """Connected from an empty folder: Ray puts the driver's before all others that workers import from."""
    monkeypatch.chdir(tmp_path)
    with connected(ray_cluster.address) as found:
        yield found


def test_each_item_has_its_result(cluster):
    def task(item):
        return item * item, os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]

    assert sorted(map_tasks(cluster, task, [3, 4])) == [(0, (9, "1", "1")), (1, (16, "1", "1"))]
    assert (len(cluster.nodes), cluster.cpus) == (4, 3)


def test_killed_nodes_work_is_done_elsewhere(cluster, ray_cluster, tmp_path):
    def task(item):
        (tmp_path / f"begun-{item}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.02)
        return -item

    lost = []
    results = map_tasks(cluster, task, list(range(7)), lost=lost.append)

    def strike():
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 3)  # one on each node
        ray_cluster.kill(ray_cluster.nodes[0])
        (tmp_path / "go").touch()

    striker = threading.Thread(target=strike)
    striker.start()
    assert sorted(results) == [(item, -item) for item in range(7)]
    striker.join()
    assert len(lost) == 1
    assert "of 7 was lost" in lost[0]
    assert "\n" not in lost[0]


def test_task_that_kills_workers_ends(cluster, monkeypatch):
    monkeypatch.setattr(tasks, "RETRIES", 1)

    def task(item):
        os.kill(os.getpid(), signal.SIGKILL)

    lost = []
    with pytest.raises(HostError, match=r"task 1 of 1 was lost: .*; that was the 2\. time"):
        list(map_tasks(cluster, task, [0], lost=lost.append))
    assert len(lost) == 1


def test_what_a_task_raises_is_no_loss(cluster):
    def task(error):
        raise error

    for error, said in ((CheckFailed("no good"), r"node [\d.]+: no good"), (ZeroDivisionError("by zero"), "by zero")):
        with pytest.raises(type(error), match=said):
            list(map_tasks(cluster, task, [error], lost=lambda line: pytest.fail(line)))


def test_without_cpu_it_is_told_before_waiting():
    with pytest.raises(ConfigError, match=r"at 10\.0\.0\.1:6379 offers a CPU"):
        list(map_tasks(SimpleNamespace(address="10.0.0.1:6379", cpus=0), abs, [1]))


def test_task_left_early_cleans_up(cluster, tmp_path):
    def task(item):
        try:
            (tmp_path / f"begun-{item}").touch()
            while item:
                time.sleep(0.02)  # Ray interrupts Python, and no sleep
        except KeyboardInterrupt:
            (tmp_path / f"cleaned-{item}").touch()
            raise

    results = map_tasks(cluster, task, list(range(4)))
    next(results)
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 4)
    results.close()
    assert len(list(tmp_path.glob("cleaned-*"))) == 3


def another(folder, text, cpus=0):
    package = folder / "elsewhere" / "rlctl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return {"env_vars": {"PYTHONPATH": str(package.parent)}, "num_cpus": cpus}


def test_a_node_with_another_rlctl_is_refused(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = ray_cluster.add(**another(tmp_path, '__version__ = "0.0.1"'))
    with pytest.raises(ConfigError, match=r"node [\d.]+ runs rlctl 0\.0\.1"), connected(ray_cluster.address):
        pass
    ray_cluster.kill(odd)


def test_a_node_without_rlctl_is_refused(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = ray_cluster.add(**another(tmp_path, 'raise ImportError("gone")'))
    with pytest.raises(ConfigError, match=r"node [\d.]+ has no rlctl to run \(gone\)"), connected(ray_cluster.address):
        pass
    ray_cluster.kill(odd)


def test_late_node_with_another_rlctl_does_nothing(cluster, ray_cluster, tmp_path):
    odd = ray_cluster.to(0).add(**another(tmp_path, '__version__ = "0.0.1"', cpus=1))
    with pytest.raises(Exception, match="rlctl"):
        list(map_tasks(cluster, abs, [1]))
    ray_cluster.kill(odd)
