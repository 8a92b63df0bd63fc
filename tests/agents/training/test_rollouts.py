"""Training on testbeds that are slow, come late, leave and die: first come, first served, and everything counted."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlctl[distributed]'")

import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.buffers import ReplayBuffer

from rlctl.agents.served.bundle import load
from rlctl.agents.training.algorithms import make
from rlctl.agents.training.cluster.connection import connected
from rlctl.agents.training.cluster.nodes import Node
from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.learn import learn
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.rollouts import cluster_env as rollouts
from rlctl.agents.training.rollouts import testbeds
from rlctl.agents.training.rollouts.cluster_env import ClusterEnv, Rollouts, nth_seed
from rlctl.agents.training.rollouts.segment_learners import ROLLOUT_CLASSES, extend
from rlctl.agents.training.rollouts.segments import Orders, Transitions
from rlctl.agents.training.rollouts.tally import HostTally, Tally
from rlctl.agents.training.rollouts.testbeds import Arrival, Planned, Testbed, Testbeds
from rlctl.agents.training.rollouts.worker import Ready, SimRunning, Worker
from rlctl.agents.training.training_run import Ending, TrainingRun
from rlctl.agents.training.trial import Course
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.errors import ConfigError, HostError

pytestmark = pytest.mark.train

HOSTS, LAGS = load_hosts(), (1, 0)


class Scripted:
    """Testbeds in this process; each delivers only after so many looks, or never."""

    def __init__(self, *patience, count=6, lags=LAGS, tally=None):
        self.tally, self.clock, self._policy = Tally() if tally is None else tally, 0.0, {}
        self._all, self._left, self._patience = [], {}, dict(enumerate(patience))
        for number, _ in enumerate(patience):
            worker = Worker(partial(SimRunning, groups(count), lags, nth_seed(0, count, 0, number)), number)
            one = Testbed(f"t{number}", "simulated", "n", number, False, worker, worker.begin())
            self._all.append(one)
            self.tally.of(one.name, one.kind)

    def __iter__(self):
        return iter(self._all)

    def ask(self, one, orders, policy):
        one.orders, one.asked_at = orders, self.clock
        self._policy[one.place], self._left[one.place] = policy, self._patience[one.place]

    def arrivals(self, _):
        came, self.clock = [], self.clock + 1.0
        for one in self._all:
            if one.orders is None:
                continue
            if self._left[one.place] == 0:
                segment = one.actor.segment(one.orders, self._policy[one.place])
                one.orders = None
                came.append(Arrival(one, segment, 0.0))
            else:
                self._left[one.place] -= 1
        return came

    def close(self):
        for one in self._all:
            one.actor.close()


def groups(count):
    short = HOSTS.model_copy(update={"episode_steps": 10})
    return tuple(rollouts.Group.of(kind, number, short) for kind, number in rollouts.present(HOSTS, count))


@pytest.fixture
def scripted(monkeypatch):
    """An environment over scripted testbeds, and a learner on it."""
    monkeypatch.setattr(rollouts.ray, "put", lambda policy: policy)
    envs = []
    monkeypatch.setattr(rollouts, "time", SimpleNamespace(monotonic=lambda: envs[-1]._testbeds.clock))

    def make_it(algorithm, *patience, **changes):
        recipe, _ = load_recipe(algorithm).fitted(1000, None, 12)
        recipe = recipe.model_copy(update={"lags": LAGS, "batch_size": 48} | changes)
        env = ClusterEnv(Scripted(*patience), 12, LAGS, [one.kind.name for one in groups(6)])
        envs.append(env)
        model = make(algorithm, recipe, env, lambda: 1.0, ROLLOUT_CLASSES)
        model._setup_learn(1000, None)
        model.set_logger(SimpleNamespace(record=lambda *_, **__: None))
        return model, env

    yield make_it
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
def test_a_rollout_has_the_probabilities_and_values_that_the_learner_would_have_had(algorithm, scripted):
    model, env = scripted(algorithm, 0, 1, n_steps=12)
    buffer = collected(model, env)
    assert buffer.buffer_size == model.num_timesteps == 12 * 12
    assert env.tally.total("learned") == 12 * 12
    data = next(buffer.get())
    masks = {"action_masks": data.action_masks} if algorithm == "maskable-ppo" else {}
    with torch.no_grad():
        values, log_probs, _ = model.policy.evaluate_actions(data.observations, data.actions.flatten().long(), **masks)
    torch.testing.assert_close(log_probs, data.old_log_prob, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(values.flatten(), data.old_values)
    model.train()
    assert model._n_updates > 0


@pytest.mark.slow
def test_nobody_waits_for_a_testbed_that_is_late_and_what_it_sends_too_late_is_stale(scripted):
    model, env = scripted("ppo", 0, 0, 40, n_steps=12)
    sizes = [collected(model, env).buffer_size for _ in range(3)]
    assert all(72 <= size <= 144 for size in sizes)
    slow = env.tally.hosts["t2"]
    assert slow.segments == 0
    while not slow.segments:
        collected(model, env)
    assert slow.stale > 0
    assert slow.learned == 0
    assert slow.behind_most > rollouts.MOST_BEHIND
    assert env.tally.total("learned") == model.num_timesteps


def test_one_testbed_alone_fills_a_rollout_in_several_segments(scripted):
    model, env = scripted("ppo", 0, n_steps=12)
    assert collected(model, env).buffer_size == 144
    assert env.tally.hosts["t0"].segments == 2


def test_dqn_keeps_what_any_version_did_and_makes_the_updates_of_its_recipe(scripted):
    model, env = scripted("dqn", 0, 3, learning_starts=0, gradient_steps=4)
    updates = 0
    for _ in range(12):
        came = model.collect_rollouts(env, Going(), model.train_freq, model.replay_buffer, learning_starts=0)
        model.train(gradient_steps=4, batch_size=48)
        updates += 4 * came.episode_timesteps / 12
    assert model._n_updates == pytest.approx(updates, abs=1.0)
    assert model.replay_buffer.pos == model.num_timesteps == env.tally.total("learned")
    assert env.tally.hosts["t1"].behind_most > 0
    assert env.tally.total("stale") == 0
    counts = env.take_counts()
    assert sum(one.ticks for one in counts.happened) == model.num_timesteps
    assert set(counts.episode_steps) == {10}


def test_dqn_makes_no_updates_for_what_was_collected_before_it_learns(scripted):
    model, env = scripted("dqn", 0, learning_starts=200, gradient_steps=4)
    while model.num_timesteps <= 200:
        came = model.collect_rollouts(env, Going(), model.train_freq, model.replay_buffer, learning_starts=200)
    model.train(gradient_steps=4, batch_size=48)
    assert 0 < model._n_updates <= 4 * came.episode_timesteps / 12


def test_a_replay_buffer_that_is_full_forgets_the_oldest():
    buffer = ReplayBuffer(5, Box(-1, 1, (1,)), Discrete(9), "cpu")

    def some(*numbers):
        column = np.array(numbers, np.float32)
        actions = np.array(numbers, np.int64)
        return Transitions(column[:, None], column[:, None] + 1, actions, column, np.array(numbers) == 4)

    extend(buffer, some(0, 1, 2))
    assert (buffer.pos, buffer.full) == (3, False)
    extend(buffer, some(3, 4, 5, 6))
    assert (buffer.pos, buffer.full) == (2, True)
    assert buffer.actions[:, 0, 0].tolist() == [5, 6, 2, 3, 4]
    assert buffer.next_observations[:, 0, 0].tolist() == [6, 7, 3, 4, 5]
    assert buffer.timeouts[:, 0].tolist() == buffer.dones[:, 0].tolist() == [0, 0, 0, 0, 1]
    extend(buffer, some(*range(8)))
    assert sorted(buffer.actions[:, 0, 0]) == [3, 4, 5, 6, 7]


def test_dqn_over_several_steps_is_refused(scripted):
    with pytest.raises(ConfigError, match="lockstep"):
        scripted("dqn", 0, n_steps=3)


def test_no_two_testbeds_of_a_run_share_a_host():
    count = 3000
    firsts = sorted(nth_seed(1, count, 0, number) for number in range(20))
    assert min(np.diff(firsts)) >= count


def test_more_hosts_than_a_testbed_has_seeds_for_are_refused_before_one_is_started():
    node = Node("1234", "10.0.0.1", {"CPU": 2.0, "testbed": 2.0})
    with pytest.raises(ConfigError, match="40000 hosts are 20000 on each of 2 testbeds; 16384 are the most"):
        Rollouts(SimpleNamespace(nodes=[node])).env(HOSTS, 40_000, 0, LAGS, 0, Tally())


def test_a_testbed_that_cannot_be_started_is_left_out_whatever_the_other_one_on_its_node_does(monkeypatch):
    begun, said = [], []

    def works():
        return Ready(2, 0.0)

    def broken():
        raise HostError("nginx is not installed")

    def started_on(_node, _actor, start, *_, **__):
        begun.append(start)
        calls = {"begin": start, "segment": lambda: "a segment", "close": None}
        return SimpleNamespace(**{name: SimpleNamespace(remote=lambda *_, do=do: do) for name, do in calls.items()})

    monkeypatch.setattr(testbeds, "started_on", started_on)
    monkeypatch.setattr(testbeds, "answer", lambda reference: reference())
    monkeypatch.setattr(testbeds, "ray", SimpleNamespace(wait=lambda references, **_: (references, [])))
    monkeypatch.setattr(testbeds, "LOOK_SECONDS", 0.0)
    planned = [Planned("simulated", works, 0), Planned("live-nginx", broken, 1, live=True)]
    node = Node("1234", "10.0.0.1", {"CPU": 2.0, "testbed": 2.0, "live": 1.0})
    beds = Testbeds(SimpleNamespace(nodes=[node]), lambda _, place: planned[place], Tally(), 60.0, said.append)
    came = []
    for _ in range(4):
        came += beds.arrivals(0.0)
        for one in beds:
            beds.ask(one, Orders(1, 4), None)
    assert len(came) == 3
    assert begun == [works, broken]
    assert said[-1] == "testbed 10.0.0.1-1234-2 is left out: nginx is not installed"
    assert list(beds.tally.hosts) == ["10.0.0.1-1234"]


def run_of(folder, algorithm="ppo", timesteps=3000, **changes):
    recipe, _ = load_recipe(algorithm).fitted(timesteps, None, 24)
    scenario = load_scenario("two-core")
    course = Course("two-core", scenario.host(), scenario.load_model, scenario.be.weight, 10)
    given = {"validation_seeds": 2, "export": False} | changes
    return TrainingRun(algorithm, recipe.model_copy(update={"batch_size": 64}), HOSTS, (course,), folder, **given)


def test_what_a_killed_run_learned_after_its_checkpoint_is_not_counted_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts.ray, "put", lambda policy: policy)

    class Here:
        def env(self, _hosts, count, _seed, lags, _block, tally):
            return ClusterEnv(Scripted(0, lags=lags, tally=tally), count, lags, [one.kind.name for one in groups(6)])

    asked = iter([False] * 3)
    before = learn(run_of(tmp_path), stopped=lambda: next(asked, True), rollouts=Here())
    assert before.tally.total("learned") == before.timesteps > 0
    Tally({"t0": HostTally("simulated", learned=10**6)}).write(tmp_path)  # as the curves had it when it was killed
    again = learn(run_of(tmp_path, timesteps=before.timesteps + 500, resume=True), rollouts=Here())
    assert again.tally.total("learned") == again.timesteps > before.timesteps


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
    """The tally of the run that goes on."""
    made, real = [], Rollouts.env

    def env(self, *given):
        made.append(given[-1])
        return real(self, *given)

    monkeypatch.setattr(Rollouts, "env", env)
    return made


@pytest.mark.ray
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_training_goes_on_while_a_node_dies_and_another_one_joins(algorithm, ray_cluster, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []

    def heard_of(count):
        return sum(one.learned > 0 for one in kept[0].hosts.values()) >= count

    disturb = when(
        (lambda: heard_of(3), lambda: ray_cluster.kill(ray_cluster.nodes[0])),
        (lambda: kept[0].total("losses"), ray_cluster.add),
    )
    with connected(ray_cluster.address) as cluster:
        run = run_of(tmp_path / "run", algorithm, 10**7, export=True)
        result = learn(run, stopped=lambda: disturb() or heard_of(4), rollouts=Rollouts(cluster, say=said.append))
    assert result.ending is Ending.STOPPED
    assert result.tally.total("losses") >= 1
    assert result.tally.total("lost") > 0
    assert result.tally.total("learned") == result.timesteps
    assert len(result.tally.hosts) >= 4  # a busy machine may lose one more
    assert sum("is lost" in line for line in said) >= 1
    told = load(result.bundle).card.training.hyperparameters["rollouts"]
    assert told == result.tally.as_json()


@pytest.mark.ray
@pytest.mark.slow
def test_without_any_testbed_it_ends_in_one_line_and_can_be_resumed(ray_cluster, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said, envs, real = [], [], Rollouts.env
    monkeypatch.setattr(Rollouts, "env", lambda self, *given: envs.append(real(self, *given)) or envs[-1])

    def leave_it_alone():
        ray_cluster.to(0)
        envs[0]._testbeds._wait_seconds = 5.0  # a busy machine is silent for longer while testbeds start

    leave = when((lambda: kept[0].total("learned") > 500, leave_it_alone))
    with connected(ray_cluster.address) as cluster:
        lonely = Rollouts(cluster, say=said.append)
        with pytest.raises(HostError, match=r"no testbed has delivered anything for \d+ s; .* can be resumed"):
            learn(run_of(tmp_path / "run", timesteps=10**7), stopped=leave, rollouts=lonely)
        assert "no node offers `testbed`: waiting up to 5 s for one" in said
        ray_cluster.add()
        before = kept[0].total("learned")
        again = run_of(tmp_path / "run", timesteps=int(before) + 400, resume=True)
        result = learn(again, rollouts=Rollouts(cluster))
    assert result.ending is Ending.BUDGET
    assert result.tally.total("learned") == result.timesteps > before
