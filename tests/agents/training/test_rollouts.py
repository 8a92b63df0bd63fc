"""Training on testbeds that come late, leave and die: all that are there act at once, and everything is counted."""

import itertools
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlctl[distributed]'")

import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_zip_file

from rlctl.agents.served.bundle import load
from rlctl.agents.served.bundle_writer import as_file
from rlctl.agents.served.card import ObservationTable
from rlctl.agents.training.algorithms import make
from rlctl.agents.training.cluster.connection import connected
from rlctl.agents.training.cluster.nodes import Node
from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.learn import learn
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.rollouts import cluster_env
from rlctl.agents.training.rollouts.cluster_env import Rollouts, nth_seed
from rlctl.agents.training.rollouts.learners import ROLLOUT_CLASSES, extend
from rlctl.agents.training.rollouts.worker import Orders, RolloutSample
from rlctl.agents.training.training_run import Ending, HostTally, Tally, TrainingRun
from rlctl.agents.training.trial import Course
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import ConfigError, HostError, PolicyError

pytestmark = pytest.mark.train

HOSTS, LAGS = load_hosts(), (1, 0)
SHORT = HOSTS.model_copy(update={"episode_steps": 10})


NEVER = 10**6
GONE = cluster_env.exceptions.ActorDiedError()
NODE = Node("12" * 28, "10.0.0.1", {"CPU": 2.0, "testbed": 2.0})
FIRST, SECOND = "10.0.0.1-1212", "10.0.0.1-1212-2"


class Actors:
    """Ray in this process; its n-th actor has an error at one of its samples, or at 0, where it begins."""

    def __init__(self, errors):
        self.errors, self.begun = errors, 0

    put = staticmethod(lambda policy: policy)
    wait = staticmethod(lambda references, **_: (references, []))
    kill = staticmethod(lambda _: None)

    def remote(self, _):
        return self

    def options(self, **_):
        actor, number, calls = SimpleNamespace(), self.begun, itertools.count()
        self.begun += 1

        def called(function):
            at, error = self.errors.get(number, (NEVER, None))

            def answer():
                if next(calls) == at:
                    raise error
                return function()

            return answer

        def begin():
            actor.worker = actor.start()
            return actor.worker.count, actor.worker.tick_seconds

        def begun(start, _):
            actor.start = start
            return called(begin)

        actor.begin = SimpleNamespace(remote=begun)
        actor.sample = SimpleNamespace(remote=lambda *given: called(lambda: actor.worker.sample(*given)))
        actor.close = SimpleNamespace(remote=lambda: None)
        return SimpleNamespace(remote=lambda: actor)


@pytest.fixture
def acting(monkeypatch):
    """Makes actors in this process, and where they are."""

    def make_one(errors=MappingProxyType({}), testbeds=2.0, said=()):
        actors = Actors(errors)
        monkeypatch.setattr(cluster_env, "ray", actors)
        monkeypatch.setattr(cluster_env, "result_of", lambda reference: reference())
        node = replace(NODE, resources=NODE.resources | {"testbed": testbeds})
        return actors, Rollouts(SimpleNamespace(nodes=[node]), say=getattr(said, "append", lambda _: None))

    return make_one


@pytest.fixture
def make_it(acting):
    """Makes an environment of two testbeds in this process, the second of which is lost, and a learner on it."""
    envs = []

    def make_one(algorithm, lost_at=NEVER, **changes):
        recipe, _ = load_recipe(algorithm).fitted(1000, None, 12)
        recipe = recipe.model_copy(update={"lags": LAGS, "batch_size": 48} | changes)
        _, rollouts = acting({1: (lost_at, GONE)})
        env = rollouts.env(SHORT, 12, 0, LAGS, 0, Tally())
        envs.append(env)
        model = make(algorithm, recipe, env, lambda: 1.0, ROLLOUT_CLASSES)
        model._setup_learn(1000, None)
        model.set_logger(SimpleNamespace(record=lambda *_, **__: None))
        return model, env

    yield make_one
    for env in envs:
        env.close()


class Going:
    """A callback that lets it go on."""

    def on_rollout_start(self):
        pass

    def on_step(self):
        return True

    on_rollout_end = on_rollout_start


def collected(model, env):
    assert model.collect_rollouts(env, Going(), model.rollout_buffer, model.n_steps)
    return model.rollout_buffer


@pytest.mark.parametrize("algorithm", ["ppo", "maskable-ppo"])
def test_a_rollout_is_rated_as_the_learner_would(algorithm, make_it):
    model, env = make_it(algorithm, n_steps=12)
    buffer = collected(model, env)
    assert buffer.buffer_size * buffer.n_envs == model.num_timesteps == 12 * 12
    assert env.tally.total("learned") == 12 * 12
    assert buffer.episode_starts[10].all(), "episodes of ten steps"
    data = next(buffer.get())
    masks = {"action_masks": data.action_masks} if algorithm == "maskable-ppo" else {}
    with torch.no_grad():
        values, log_probs, _ = model.policy.evaluate_actions(data.observations, data.actions.flatten().long(), **masks)
    torch.testing.assert_close(log_probs, data.old_log_prob, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(values.flatten(), data.old_values, atol=1e-5, rtol=0.0)
    model.train()
    assert model._n_updates > 0


def test_a_cut_off_episode_counts_its_last_value(make_it):
    model, env = make_it("ppo", n_steps=10, batch_size=60)
    samples, real = [], env.sample
    env.sample = lambda *given: samples.append(real(*given)) or samples[-1]
    buffer = collected(model, env)
    with torch.no_grad():
        last = model.policy.predict_values(torch.tensor(samples[0].next_observations[-1])).numpy()[:, 0]
    assert samples[0].dones[-1].all()
    np.testing.assert_allclose(buffer.rewards[-1], samples[0].rewards[-1] + model.gamma * last, atol=1e-5)
    np.testing.assert_allclose(buffer.advantages[-1], buffer.rewards[-1] - buffer.values[-1], atol=1e-5)


def test_the_rollout_of_a_lost_testbed_is_counted(make_it):
    model, env = make_it("ppo", 2, n_steps=12)
    assert collected(model, env).n_envs == 12
    assert collected(model, env).n_envs == 6
    assert env.tally.hosts[SECOND] == HostTally("simulated", learned=72, lost=72, losses=1)
    assert collected(model, env).actions.size == 144, "the other one does its part from now on"
    assert env.tally.total("learned") == model.num_timesteps


def test_dqn_makes_the_updates_of_its_recipe(make_it):
    model, env = make_it("dqn", 3, learning_starts=0, gradient_steps=4)
    updates = 0
    for _ in range(12):
        came = model.collect_rollouts(env, Going(), model.train_freq, model.replay_buffer, learning_starts=0)
        model.train(gradient_steps=4, batch_size=48)
        updates += 4 * came.episode_timesteps / 12
    assert model._n_updates == pytest.approx(updates, abs=1.0)
    assert model.replay_buffer.pos == model.num_timesteps == env.tally.total("learned")
    counts = env.take_counts()
    assert sum(one.ticks for one in counts.happened.values()) == model.num_timesteps
    assert set(counts.episode_steps) == {10}


def test_dqn_makes_no_updates_before_it_learns(make_it):
    model, env = make_it("dqn", learning_starts=200, gradient_steps=4)
    while model.num_timesteps <= 200:
        came = model.collect_rollouts(env, Going(), model.train_freq, model.replay_buffer, learning_starts=200)
    model.train(gradient_steps=4, batch_size=48)
    assert 0 < model._n_updates <= 4 * came.episode_timesteps / 12


def test_a_full_replay_buffer_forgets_the_oldest():
    buffer = ReplayBuffer(5, Box(-1, 1, (1,)), Discrete(9), "cpu")

    def some(*numbers):
        column = np.array(numbers, np.float32)[:, None]
        seen = column[:, :, None]
        return RolloutSample(seen, seen + 1, column.astype(np.int64), column, column == 4)

    extend(buffer, some(0, 1, 2))
    assert (buffer.pos, buffer.full) == (3, False)
    extend(buffer, some(3, 4, 5, 6))
    assert (buffer.pos, buffer.full) == (2, True)
    assert buffer.actions[:, 0, 0].tolist() == [5, 6, 2, 3, 4]
    assert buffer.next_observations[:, 0, 0].tolist() == [6, 7, 3, 4, 5]
    assert buffer.timeouts[:, 0].tolist() == buffer.dones[:, 0].tolist() == [0, 0, 0, 0, 1]
    extend(buffer, some(*range(8)))
    assert sorted(buffer.actions[:, 0, 0]) == [3, 4, 5, 6, 7]


def test_dqn_over_several_steps_is_refused(make_it):
    with pytest.raises(ConfigError, match="lockstep"):
        make_it("dqn", n_steps=3)


def test_no_two_testbeds_share_a_host():
    count = 3000
    firsts = sorted(nth_seed(1, count, 0, number) for number in range(20))
    assert min(np.diff(firsts)) >= count


def test_more_hosts_than_seeds_are_refused():
    with pytest.raises(ConfigError, match="40000 hosts are 20000 on each of 2 testbeds; 16384 are the most"):
        Rollouts(SimpleNamespace(nodes=[NODE])).env(HOSTS, 40_000, 0, LAGS, 0, Tally())


@pytest.fixture
def sampled(acting, linear, monkeypatch):
    """Numbers of hosts of three samples of two testbeds, how many actors were begun, and what was said."""
    monkeypatch.setattr(cluster_env, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(cluster_env, "RETRY_SECONDS", 0.0)
    size = ObservationTable.here(LAGS).size
    policy = as_file(linear(np.zeros((len(MOVES), size)), np.zeros(len(MOVES))))

    def sample(errors):
        actors, rollouts = acting(errors, said=(said := []))
        env = rollouts.env(SHORT, 12, 0, LAGS, 0, Tally())
        return [env.sample(policy, Orders(1)).size for _ in range(3)], actors.begun, said

    return sample


def test_a_testbed_that_cannot_begin_is_left_out(sampled):
    hosts, begun, said = sampled({1: (0, HostError("nginx is not installed"))})
    assert (hosts, begun) == ([6, 6, 6], 2)
    assert said == [f"testbed {FIRST}: 6 simulated", f"testbed {SECOND} is left out: nginx is not installed"]


def test_a_testbed_that_is_lost_begins_anew(sampled):
    hosts, begun, said = sampled({1: (2, GONE)})
    assert (hosts, begun) == ([12, 6, 12], 3)
    assert said[2].startswith(f"testbed {SECOND} is lost: ")


def test_what_is_wrong_everywhere_ends_it(sampled):
    with pytest.raises(PolicyError, match="diverged"):
        sampled({0: (1, PolicyError("diverged"))})


def run_of(folder, algorithm="ppo", timesteps=3000, **changes):
    recipe, _ = load_recipe(algorithm).fitted(timesteps, None, 24)
    scenario = load_scenario("two-core")
    course = Course("two-core", scenario.host(), scenario.load_model, scenario.be.weight, 10)
    given = {"validation_seeds": 2, "export": False} | changes
    return TrainingRun(algorithm, recipe.model_copy(update={"batch_size": 64}), HOSTS, (course,), folder, **given)


def test_what_a_killed_run_lost_counts_once(acting, tmp_path):
    _, mine = acting(testbeds=1.0)
    asked = iter([False] * 5)
    before = learn(run_of(tmp_path), stopped=lambda: next(asked, True), rollouts=mine)
    assert before.tally.total("learned") >= before.timesteps > 0
    Tally({FIRST: HostTally("simulated", learned=10**6)}).write(tmp_path)  # as the curves had it when it was killed
    again = learn(run_of(tmp_path, timesteps=before.timesteps + 500, resume=True), rollouts=mine)
    assert 10**6 > again.tally.total("learned") >= again.timesteps > before.timesteps


# On a real cluster.


def when(*things):
    """A `stopped` that never stops: each thing is done once its condition holds, in this order."""
    todo = list(things)

    def stopped():
        if todo and todo[0][0]():
            todo.pop(0)[1]()
        return False

    return stopped


@pytest.fixture
def kept(monkeypatch):
    """The environment of the run that goes on."""
    made, real = [], Rollouts.env
    monkeypatch.setattr(Rollouts, "env", lambda self, *given: made.append(real(self, *given)) or made[-1])
    return made


def weights(folder):
    (model,) = folder.glob("checkpoints/*/model.zip")
    _, parameters, _ = load_from_zip_file(model, device="cpu", load_data=False)
    return torch.cat([one.flatten() for one in parameters["policy"].values()])


@pytest.mark.ray
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_training_goes_on_when_actors_die(algorithm, ray_cluster, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []

    def heard_of(count):
        return sum(one.learned > 0 for one in kept[0].tally.hosts.values()) >= count

    def kill_an_actor():
        raylet = ray_cluster._processes(ray_cluster.nodes[1])
        (actor,) = [one for one in raylet if "ray::_Actor" in " ".join(one.cmdline())]
        actor.kill()

    disturb = when(
        (lambda: heard_of(3), lambda: ray_cluster.kill(ray_cluster.nodes[0])),
        (lambda: kept[0].tally.total("losses") == 1, lambda: (ray_cluster.add(), kill_an_actor())),
    )

    def enough():
        begun = [line for line in said if line.startswith("testbed") and line.endswith("simulated")]
        return disturb() or (heard_of(4) and len(begun) >= 5)  # three, the new node's, and the one begun anew

    with connected(ray_cluster.address) as cluster:
        run = run_of(tmp_path / "run", algorithm, 10**7, export=True)
        result = learn(run, stopped=enough, rollouts=Rollouts(cluster, say=said.append))
    assert result.ending is Ending.STOPPED
    assert result.tally.total("losses") >= 2
    assert result.tally.total("lost") > 0
    assert sum("is lost" in line for line in said) >= 2
    told = load(result.bundle).card.training.hyperparameters["rollouts"]
    assert told == result.tally.as_json()


@pytest.mark.ray
@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with connected(ray_cluster.address) as cluster:
        for name in ("one", "again"):
            learn(run_of(tmp_path / name, timesteps=1000), rollouts=Rollouts(cluster))
    assert torch.equal(weights(tmp_path / "one"), weights(tmp_path / "again"))


@pytest.mark.ray
@pytest.mark.slow
def test_without_any_testbed_it_can_be_resumed(ray_cluster, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []

    def leave_it_alone():
        ray_cluster.to(0)
        kept[0].wait_seconds = 5.0  # a busy machine is silent for longer while testbeds start

    leave = when((lambda: kept[0].tally.total("learned") > 500, leave_it_alone))
    with connected(ray_cluster.address) as cluster:
        lonely = Rollouts(cluster, say=said.append)
        with pytest.raises(HostError, match=r"no testbed has delivered anything for \d+ s; .* can be resumed"):
            learn(run_of(tmp_path / "run", timesteps=10**7), stopped=leave, rollouts=lonely)
        assert "no node offers `testbed`: waiting up to 5 s for one" in said
        ray_cluster.add()
        before = kept[0].tally.total("learned")
        again = run_of(tmp_path / "run", timesteps=int(before) + 400, resume=True)
        result = learn(again, rollouts=Rollouts(cluster))
    assert result.ending is Ending.BUDGET
    assert result.tally.total("learned") >= result.timesteps > before
