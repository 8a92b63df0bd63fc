"""Training on testbeds that come late, leave and die: all that are there act at once, and everything is counted."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs rlctl[train]")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlctl[distributed]'")

import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_zip_file

from rlctl.agents.served.bundle import load
from rlctl.agents.training.algorithms import make
from rlctl.agents.training.cluster.connection import connected
from rlctl.agents.training.cluster.nodes import Node
from rlctl.agents.training.host_kinds import HostShare, load_hosts, present
from rlctl.agents.training.learn import learn
from rlctl.agents.training.recipe import load_recipe
from rlctl.agents.training.rollouts import cluster_env, runners
from rlctl.agents.training.rollouts.cluster_env import ClusterEnv, Rollouts, nth_seed
from rlctl.agents.training.rollouts.learners import ROLLOUT_CLASSES, extend
from rlctl.agents.training.rollouts.runners import Lost, Planned, Runner, Runners
from rlctl.agents.training.rollouts.sample import RolloutSample
from rlctl.agents.training.rollouts.tally import HostTally, Tally
from rlctl.agents.training.rollouts.worker import SimWorker
from rlctl.agents.training.training_run import Ending, TrainingRun
from rlctl.agents.training.trial import Course
from rlctl.bench.scenarios import load_scenario
from rlctl.envs.errors import ConfigError, HostError, PolicyError

pytestmark = pytest.mark.train

HOSTS, LAGS = load_hosts(), (1, 0)


class Here:
    """Runners in this process; each is lost at one of its samples, or never."""

    def __init__(self, *lost_at, count=6, lags=LAGS):
        self.all, self.why, self._asked, self._lost_at = [], "", [], {}
        for number, at in enumerate(lost_at):
            worker = SimWorker(groups(count), lags, nth_seed(0, count, 0, number), number)
            one = Runner(f"t{number}", Planned("simulated", None), ("n", number), worker, count)
            self.all.append(one)
            self._lost_at[one] = at

    @property
    def idle(self):
        return list(self.all)

    def look(self):
        pass

    def ask(self, one, orders, policy):
        self._asked.append((one, orders, policy))

    def arrivals(self, _):
        asked, self._asked = self._asked, []
        came = []
        for one, orders, policy in reversed(asked):  # in any order
            self._lost_at[one] -= 1
            if self._lost_at[one] == 0:
                self.all.remove(one)
                came.append((one, Lost("killed")))
            else:
                came.append((one, one.actor.sample(orders, policy)))
        return came

    def close(self):
        for one in self.all:
            one.actor.close()


NEVER = 10**6


def groups(count):
    short = HOSTS.model_copy(update={"episode_steps": 10})
    return tuple(HostShare.of(kind, number, short) for kind, number in present(HOSTS, count))


@pytest.fixture
def make_it(monkeypatch):
    """Makes an environment over runners in this process, and a learner on it."""
    monkeypatch.setattr(cluster_env.ray, "put", lambda policy: policy)
    envs = []

    def make_one(algorithm, *lost_at, **changes):
        recipe, _ = load_recipe(algorithm).fitted(1000, None, 12)
        recipe = recipe.model_copy(update={"lags": LAGS, "batch_size": 48} | changes)
        env = ClusterEnv(Here(*lost_at), 12, LAGS, [one.kind.name for one in groups(6)], Tally())
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
    model, env = make_it(algorithm, NEVER, NEVER, n_steps=12)
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
    model, env = make_it("ppo", NEVER, NEVER, n_steps=10, batch_size=60)
    samples, real = [], env.sample
    env.sample = lambda *given: samples.append(real(*given)) or samples[-1]
    buffer = collected(model, env)
    with torch.no_grad():
        last = model.policy.predict_values(torch.tensor(samples[0].next_observations[-1])).numpy()[:, 0]
    assert samples[0].dones[-1].all()
    np.testing.assert_allclose(buffer.rewards[-1], samples[0].rewards[-1] + model.gamma * last, atol=1e-5)
    np.testing.assert_allclose(buffer.advantages[-1], buffer.rewards[-1] - buffer.values[-1], atol=1e-5)


def test_the_rollout_of_a_lost_testbed_is_counted(make_it):
    model, env = make_it("ppo", NEVER, 2, n_steps=12)
    assert collected(model, env).n_envs == 12
    assert collected(model, env).n_envs == 6
    assert env.tally.hosts["t1"] == HostTally("simulated", learned=72, lost=72, losses=1)
    assert collected(model, env).actions.size == 144, "the other one does its part from now on"
    assert env.tally.total("learned") == model.num_timesteps


def test_dqn_makes_the_updates_of_its_recipe(make_it):
    model, env = make_it("dqn", NEVER, 3, learning_starts=0, gradient_steps=4)
    updates = 0
    for _ in range(12):
        came = model.collect_rollouts(env, Going(), model.train_freq, model.replay_buffer, learning_starts=0)
        model.train(gradient_steps=4, batch_size=48)
        updates += 4 * came.episode_timesteps / 12
    assert model._n_updates == pytest.approx(updates, abs=1.0)
    assert model.replay_buffer.pos == model.num_timesteps == env.tally.total("learned")
    counts = env.take_counts()
    assert sum(one.ticks for one in counts.happened) == model.num_timesteps
    assert set(counts.episode_steps) == {10}


def test_dqn_makes_no_updates_before_it_learns(make_it):
    model, env = make_it("dqn", NEVER, learning_starts=200, gradient_steps=4)
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
        make_it("dqn", NEVER, n_steps=3)


def test_no_two_testbeds_share_a_host():
    count = 3000
    firsts = sorted(nth_seed(1, count, 0, number) for number in range(20))
    assert min(np.diff(firsts)) >= count


def test_more_hosts_than_seeds_are_refused():
    node = Node("1234", "10.0.0.1", {"CPU": 2.0, "testbed": 2.0})
    with pytest.raises(ConfigError, match="40000 hosts are 20000 on each of 2 testbeds; 16384 are the most"):
        Rollouts(SimpleNamespace(nodes=[node])).env(HOSTS, 40_000, 0, LAGS, 0, Tally())


@pytest.fixture
def scripted(monkeypatch):
    """Runners of two places on one node, whose actors are a script: what each call gives, in order."""
    scripts, began, said = {}, [], []

    class Options:
        def options(self, **_):
            return self

        def remote(self):
            script = scripts[len(began) % 2]
            began.append(script)
            call = SimpleNamespace(remote=lambda *_: functools.partial(lambda came: came, script.pop(0)))
            return SimpleNamespace(begin=call, sample=call, close=SimpleNamespace(remote=lambda: None))

    def result_of(reference):
        if isinstance(came := reference(), Exception):
            raise came
        return came

    monkeypatch.setattr(runners.ray, "remote", lambda _: Options())
    monkeypatch.setattr(runners.ray, "wait", lambda references, **_: (references, []))
    monkeypatch.setattr(runners, "result_of", result_of)
    monkeypatch.setattr(runners, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(runners, "RETRY_SECONDS", 0.0)
    node = Node("12" * 28, "10.0.0.1", {"CPU": 2.0, "testbed": 2.0})
    made = Runners(SimpleNamespace(nodes=[node]), lambda *_: Planned("simulated", None), said.append)
    return SimpleNamespace(all=made, scripts=scripts, began=began, said=said)


def rounds(scripted, count):
    came = []
    for _ in range(count):
        scripted.all.look()
        came += scripted.all.arrivals(0.0)
        for one in scripted.all.idle:
            scripted.all.ask(one, None, None)
    return came


def test_a_testbed_that_cannot_begin_is_left_out(scripted):
    scripted.scripts |= {0: [(2, 0.0), "one", "two", "three", "four"], 1: [HostError("nginx is not installed")]}
    assert [result for _, result in rounds(scripted, 4)] == ["one", "two", "three"]
    assert len(scripted.began) == 2
    assert scripted.said[-1] == "testbed 10.0.0.1-1212-2 is left out: nginx is not installed"


def test_a_testbed_that_is_lost_begins_anew(scripted):
    gone = runners.exceptions.ActorDiedError()
    scripted.scripts |= {0: [(2, 0.0), *"abcdef"], 1: [(2, 0.0), "b", gone]}
    rounds(scripted, 3)
    scripted.scripts[0] = scripted.scripts[1] = [(3, 0.0), *["new"] * 4]
    came = rounds(scripted, 3)
    assert len(scripted.began) == 3
    assert any(result == "new" for _, result in came)


def test_what_is_wrong_everywhere_ends_it(scripted):
    scripted.scripts |= {0: [(2, 0.0), PolicyError("diverged")], 1: [(2, 0.0), "b"]}
    with pytest.raises(PolicyError, match="diverged"):
        rounds(scripted, 2)


def run_of(folder, algorithm="ppo", timesteps=3000, **changes):
    recipe, _ = load_recipe(algorithm).fitted(timesteps, None, 24)
    scenario = load_scenario("two-core")
    course = Course("two-core", scenario.host(), scenario.load_model, scenario.be.weight, 10)
    given = {"validation_seeds": 2, "export": False} | changes
    return TrainingRun(algorithm, recipe.model_copy(update={"batch_size": 64}), HOSTS, (course,), folder, **given)


def test_what_a_killed_run_lost_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_env.ray, "put", lambda policy: policy)

    class Mine:
        def env(self, _hosts, count, _seed, lags, _block, tally):
            return ClusterEnv(Here(NEVER, lags=lags), count, lags, [one.kind.name for one in groups(6)], tally)

    asked = iter([False] * 5)
    before = learn(run_of(tmp_path), stopped=lambda: next(asked, True), rollouts=Mine())
    assert before.tally.total("learned") >= before.timesteps > 0
    Tally({"t0": HostTally("simulated", learned=10**6)}).write(tmp_path)  # as the curves had it when it was killed
    again = learn(run_of(tmp_path, timesteps=before.timesteps + 500, resume=True), rollouts=Mine())
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
