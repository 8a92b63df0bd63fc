"""`approve: true`: nobody decides whom nobody approved, over a restart too, and a yes is to what was shown."""

import json
from collections import defaultdict

import pytest

from rlctl.agents.managers.prm_model import PrmModel
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import CgroupError
from rlctl.envs.whole_file import write_json
from rlctl.log.record import MemoryRecorder
from rlctl.safety.profile import load_profile
from rlctl.safety.verdict import Reason
from rlctl.serve.approval import APPROVED, Approval
from rlctl.serve.deciders import Configuration, Deciders
from rlctl.serve.hands import Hands
from rlctl.serve.service import Around, control
from tests.doubles.clock import Countdown
from tests.doubles.plant import FakePlant

LIMITS = Limits(cpus=4)
PROFILE = load_profile("responsive")
PROFILE_TEXT = PROFILE.model_dump_json()
TICKS = 60


class Service:
    """A whole run of the service under a policy that asks for all.

    Args:
        said: Answers to what waits, by the tick before which somebody gives them.
        brought: Names of policies that reloads bring, by the tick as well.
        asks_from: The first tick whose configuration has `approve: true`, if not from the start.
    """

    def __init__(self, always, folder, name, *, said=None, brought=None, asks_from=0):
        self.hands, self.seen, self.closed = Hands(folder, (), 0.01), MemoryRecorder(), []
        self.seen.header, self.seen.renew_header, self.seen.dropped = None, lambda: None, 0
        self.always, self.waiting, reloads = always, [], []
        deciders = self.deciders(name, approve=not asks_from)
        around = Around(tick_log=self.seen, hands=self.hands, approval=Approval(folder, self.hands, deciders))
        then = defaultdict(list)
        for tick, new in (brought or {}).items():
            then[tick].append(lambda new=new, tick=tick: reloads.append(self.deciders(new, approve=tick >= asks_from)))
        for tick, word in (said or {}).items():
            then[tick].append(lambda word=word: self.say(word))
        control(
            FakePlant(LIMITS, loads=(0.1,)), deciders, Countdown(TICKS, then), around,
            reloaded=lambda: reloads.pop() if reloads else None,
        )  # fmt: skip

    def deciders(self, name, *, approve):
        policy = self.always(lambda _: LIMITS.full)
        policy.name, policy.close = name, lambda: self.closed.append(name)
        return Deciders(policy, PROFILE, approve=approve)

    def say(self, word):
        self.waiting.append(self.hands.waiting)
        self.hands.answer({"do": "approve", "answer": word}, "root")

    @property
    def ticks(self):
        return self.seen.ticks

    @property
    def held(self):
        """Ticks in which BE had no more than the safe allocation for want of an approval."""
        found = [tick for tick in self.ticks if Reason.NOT_APPROVED in {bound.reason for bound in tick.verdict.bounds}]
        assert all(tick.applied.at_most(LIMITS.safe) for tick in found)
        return [tick.index for tick in found]


@pytest.mark.parametrize(("word", "acting"), [("yes", "second"), ("no", "first")])
def test_a_reload_waits_for_a_word(always, word, acting):
    run = Service(always, None, "first", brought={5: "second"}, said={10: word})
    assert run.ticks[8].policy == "first"
    assert run.ticks[-1].policy == acting
    assert sorted(run.closed) == ["first", "second"]
    assert run.hands.waiting == ""
    assert run.held == []


def test_a_yes_is_to_what_waited_also_where_a_reload_comes_at_once(always):
    """Once it was lost: the reload's took the place of what it was said to."""
    run = Service(always, None, "first", brought={5: "second", 10: "third"}, said={10: "yes"})
    assert run.ticks[-1].policy == "second"
    assert run.hands.waiting.startswith("second (")
    assert "-> third (" in run.hands.waiting
    run = Service(always, None, "first", brought={5: "second", 10: "second"}, said={10: "yes"})
    assert run.ticks[-1].policy == "second"
    assert run.hands.waiting == ""
    assert sorted(run.closed) == ["first", "second", "second"]


def test_the_first_start_counts_as_approved_and_the_next_one_with_the_same_waits_for_nobody(always, tmp_path):
    for _ in range(2):
        run = Service(always, tmp_path, "first")
        assert run.held == []
        assert run.hands.waiting == ""
        assert not run.ticks[-1].applied.frozen
    assert json.loads((tmp_path / APPROVED).read_text())["approved"].startswith("first (")


def test_a_restart_is_no_way_around_a_word(always, tmp_path, caplog):
    """Once whatever the file said at a start decided, and the word that it waited for was forgotten."""
    Service(always, tmp_path, "first")
    run = Service(always, tmp_path, "second")
    assert run.held == list(range(TICKS))
    assert run.hands.waiting.startswith("first (")
    assert "-> second (" in run.hands.waiting
    assert "BE stays at the safe allocation" in caplog.text
    run = Service(always, tmp_path, "second", said={10: "no", 20: "yes"})
    assert run.held == list(range(max(run.held) + 1)), "from the start to the yes"
    assert 15 < max(run.held) < 25
    assert not run.ticks[-1].applied.frozen
    assert run.waiting[0] == run.waiting[1], "what got a no is not in force, and waits on"
    assert Service(always, tmp_path, "second").held == []
    assert Service(always, tmp_path, "first").held, "the one that was approved last counts"


def test_what_was_approved_for_a_reload_is_known_after_a_restart(always, tmp_path):
    Service(always, tmp_path, "first", brought={5: "second"}, said={10: "yes"})
    assert Service(always, tmp_path, "second").held == []
    Service(always, tmp_path, "second", brought={5: "third"}, said={10: "no"})
    assert Service(always, tmp_path, "third").held


def test_what_was_approved_and_could_not_be_brought_into_force_is_not_what_a_restart_begins_with(
    always, tmp_path, monkeypatch
):
    def refused(plant, policy, wanted):
        if policy.name == "second":
            raise CgroupError("cpu.shares: busy")

    monkeypatch.setattr("rlctl.serve.service._weigh", refused)
    run = Service(always, tmp_path, "first", brought={5: "second"}, said={10: "yes"})
    assert run.ticks[-1].policy == "first"
    assert Service(always, tmp_path, "first").held == []


def test_a_reload_of_what_was_approved_ends_the_wait(always, tmp_path):
    Service(always, tmp_path, "first")
    run = Service(always, tmp_path, "second", brought={10: "third", 20: "first"})
    assert run.ticks[-1].policy == "first"
    assert 15 < max(run.held) < 25
    assert not run.ticks[-1].applied.frozen
    assert run.hands.waiting == ""
    assert sorted(run.closed) == ["first", "second", "third"]


def test_while_a_start_waits_another_reload_may_be_approved_or_not(always, tmp_path):
    Service(always, tmp_path, "first")
    run = Service(always, tmp_path, "second", brought={10: "third", 30: "third"}, said={20: "no", 40: "yes"})
    assert 35 < max(run.held) < 45
    assert run.ticks[-1].policy == "third"
    assert "-> third (" in run.waiting[0]


def test_a_reload_that_begins_to_ask_has_what_it_brings_itself_wait(always, tmp_path, caplog):
    """Once it took effect at the next start, which approved whatever the file said by then."""
    caplog.set_level("INFO")
    (tmp_path / APPROVED).write_text(json.dumps({"schema": 1, "approved": "of long ago"}))
    run = Service(always, tmp_path, "first", brought={5: "second", 10: "third"}, asks_from=10)
    assert "`approve: true` from now on: second (" in caplog.text
    assert run.ticks[-1].policy == "second", "the one that decided when the word came into the file"
    assert not run.ticks[-1].applied.frozen
    assert run.held == []
    assert run.hands.waiting.startswith("second (")
    assert "-> third (" in run.hands.waiting
    assert run.hands.answer({"do": "status"}, "root")["approve"], "whoever shows what waits sees it"
    assert Service(always, tmp_path, "third").held, "a restart is no way around it"
    assert Service(always, tmp_path, "second").held == []


def test_a_reload_that_begins_to_ask_and_changes_nothing_else_waits_for_nobody(always, tmp_path):
    run = Service(always, tmp_path, "first", brought={10: "first", 20: "second"}, said={30: "yes"}, asks_from=10)
    assert run.held == []
    assert run.ticks[27].policy == "first"
    assert run.ticks[-1].policy == "second"


def test_a_file_that_asks_does_so_at_once_and_one_that_asks_no_more_at_the_next_start(serve_yaml, caplog):
    plain, asking = "policy: {name: static}", "policy: {name: static}\napprove: true"
    path = serve_yaml("policy: {name: frozen}", plain)
    configuration = Configuration(path)
    asked = []
    for text in (path.read_text().replace(plain, asking), path.read_text(), path.read_text()):
        path.write_text(text)
        configuration.reload.set()
        asked.append(configuration.reloaded().approve)
    assert asked == [True, False, False]
    assert configuration.config.approve, "in force until the next start"
    assert caplog.text.count("approve: changed, which takes effect at the next start") == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\0", '{"schema": 2, "approved": "x"}', '{"schema": 1}',
                                  '{"schema": 1, "approved": 3}', " " * (1 << 17)])  # fmt: skip
def test_a_file_that_nobody_can_read_approves_nothing(always, tmp_path, text, caplog):
    (tmp_path / APPROVED).write_text(text)
    run = Service(always, tmp_path, "first", said={30: "yes"})
    assert "so nothing counts as approved" in caplog.text
    assert 25 < max(run.held) < 35
    assert Service(always, tmp_path, "first").held == []


def test_a_link_or_a_first_start_that_cannot_be_kept_approves_nothing(always, tmp_path, monkeypatch):
    (tmp_path / APPROVED).symlink_to("/etc/passwd")
    assert len(Service(always, tmp_path, "first").held) == TICKS

    def full(path, data, **_):
        raise OSError(28, "No space left on device", str(path))

    (tmp_path / APPROVED).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("rlctl.serve.approval.write_json", full)
        assert len(Service(always, tmp_path, "first").held) == TICKS


@pytest.mark.parametrize("asks_from", [0, 5])
def test_what_could_not_be_kept_is_kept_once_there_is_room(always, tmp_path, monkeypatch, asks_from):
    """Else a restart would find nothing kept and call itself the first one, with nobody asked."""
    tries = []

    def full_at_first(path, data, **_):
        tries.append(data["approved"])
        if len(tries) <= 3:
            raise OSError(28, "No space left on device", str(path))
        write_json(path, data)

    monkeypatch.setattr("rlctl.serve.approval.write_json", full_at_first)
    run = Service(always, tmp_path, "first", brought={5: "second"}, asks_from=asks_from)
    assert {tick.policy for tick in run.ticks} == {"first"}
    assert run.held[-1] == TICKS - 1
    again = Service(always, tmp_path, "second")
    assert again.held == list(range(TICKS))


def test_what_is_shown_tells_apart_whatever_a_reload_can_change(serve_yaml, tmp_path):
    """Once a reload of fallback or threshold model alone read `A -> A`, and a yes to one was one to the next."""
    file, shield = tmp_path / "model.json", tmp_path / "shield.yaml"
    shield.write_text(PROFILE_TEXT)

    def shown(policy, more="", *, lcutilmax=100.0, shield_text=PROFILE_TEXT):
        PrmModel(lc_cpus=1.0, lcutilmax_percent=lcutilmax).write(file, overwrite=True)
        shield.write_text(shield_text)
        return Configuration(serve_yaml("policy: {name: frozen}", f"policy: {policy}\n{more}")).deciders.described

    prm = f"{{name: prm-eris, threshold_model: {file}}}"
    looks = [
        shown(prm),
        shown(prm, lcutilmax=90.0),
        shown("{name: prm-eris}"),
        shown("{name: prm-eris}", "fallback: {name: static}"),
        shown("{name: prm-eris}", "fallback: {name: static, answer_milliseconds: 20}"),
        shown("{name: prm-eris}", f"shield: {shield}"),
        shown("{name: prm-eris}", f"shield: {shield}", shield_text=PROFILE_TEXT.replace("0.95", "0.94")),
    ]
    assert len(set(looks)) == len(looks)
    assert shown(prm) == looks[0], "the same at every start"
    names = [look.rpartition(" [")[0] for look in looks]
    assert names[0] != names[1], "the model is part of its manager's own digest"


def test_a_chain_is_shown_with_what_is_behind_it(make_bundle, serve_yaml, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs rlctl[serve]")
    bundle = make_bundle(tmp_path / "tiny")
    chains = []
    for fallback in ("static", "heracles"):
        text = f"policy: {{name: {bundle}}}\nfallback: {{name: {fallback}}}"
        deciders = Configuration(serve_yaml("policy: {name: frozen}", text)).deciders
        chains.append(deciders.described)
        deciders.policy.close()
    assert "behind it static (" in chains[0]
    assert "behind it heracles (" in chains[1]
    card = json.loads((bundle / "card.json").read_text())
    (bundle / "card.json").write_text(json.dumps(card | {"created": "2020-01-01"}))
    another = Configuration(serve_yaml("policy: {name: frozen}", text)).deciders
    another.policy.close()
    assert another.described != chains[1], "the same network with another card"


def test_a_digest_is_of_what_was_configured_and_not_of_what_has_happened_since(always):
    policy = always(lambda _: LIMITS.full)
    deciders = Deciders(policy, PROFILE)
    policy.ticks = 3
    assert deciders.described != Deciders(policy, PROFILE).described
    assert deciders.described == Deciders(always(lambda _: LIMITS.full), PROFILE).described
