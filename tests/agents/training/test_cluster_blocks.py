"""What is compared meets one host from its first step to its last, whatever becomes of hosts meanwhile."""

import contextlib
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlctl[distributed]'")

from rlctl.agents.training.cluster.blocks import map_blocks
from rlctl.agents.training.cluster.connection import connected
from rlctl.envs.errors import ConfigError, HostError

BED = {"testbed": 1.0, "live": 1.0}


def held(folder, refusing=False):
    """Holds a file in the folder, named by its process, for as long as it is entered; steps tell who did them."""

    @contextlib.contextmanager
    def hold():
        if refusing:
            raise HostError("nginx is not installed")
        file = Path(folder) / str(os.getpid())
        file.touch()

        def step(number):
            if number < 0.0:
                raise ConfigError("card.json cannot be read")
            time.sleep(number)
            return os.getpid()

        yield step
        file.unlink()

    return hold


@pytest.mark.ray
@pytest.mark.slow
def test_a_block_is_done_on_one_host(ray_cluster, tmp_path):
    """Hosts that join late or die are made up for."""
    first = ray_cluster.add(resources=BED)
    blocks, came, said = [[0.0, 0.1, 0.1]] * 6, [], []
    with connected(ray_cluster.address) as cluster:
        for one in map_blocks(cluster, held(tmp_path), blocks, said.append):
            came.append(one)
            if len(came) == 1:
                ray_cluster.add(resources=BED)
            if len(came) == 9:
                ray_cluster.kill(first)
    for place in range(len(blocks)):
        done = [one for one in came if one.block == place]
        assert [one.step for one in done] == [0, 1, 2]
        assert len({one.result for one in done}) == 1
    assert len({one.result for one in came}) == 2
    assert [line for line in said if "was lost, and is begun anew" in line] == said
    assert len(list(tmp_path.iterdir())) == 1  # what the other one held was put back


@pytest.mark.ray
@pytest.mark.slow
def test_where_no_host_can_it_says_why(ray_cluster, tmp_path):
    with connected(ray_cluster.address) as cluster:
        with pytest.raises(ConfigError, match=r"ray start --resources '\{\"testbed\": 1, \"live\": 1\}'"):
            list(map_blocks(cluster, held(tmp_path), [[0.0]]))
        ray_cluster.add(resources=BED)
        with pytest.raises(ConfigError, match=r"node [\d.]+: card\.json cannot be read"):
            list(map_blocks(cluster, held(tmp_path), [[-1.0]]))
        with pytest.raises(HostError, match=r"no host is left to measure on: .*nginx is not installed"):
            list(map_blocks(cluster, held(tmp_path, refusing=True), [[0.0]]))
