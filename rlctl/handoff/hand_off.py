"""One pod of BE, handed to the cluster: chosen, labelled, and asked to be evicted; or kept, when BE is fed again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.config.serve import ServeConfig
from rlctl.envs.errors import CheckFailed, HostError, PermissionMissing
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.parse import child_groups
from rlctl.envs.host.kubernetes import pod_uid
from rlctl.handoff.api import Api, Declined, Pod
from rlctl.handoff.budget import Budget
from rlctl.serve.workloads import be_group, groups_of

STARVED = "rlctl.io/starved"
"""The label, with the value `true`, of a pod that should run elsewhere."""

BECAUSE = "rlctl.io/starved-because"
"""The annotation beside it: what held BE."""

GONE = (404, 409, 422)
"""Of HTTP: the pod is not there any more, or another one has its name; a label for another UID is a 422."""


NOT_NOW, MOST_TRIES = 429, 3
"""Of HTTP, for an eviction: the pod's disruption budget allows none to go. So many pods are tried then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be handed off, and how.

    Attributes:
        uids: The pods whose groups are BE's.
        selector: Labels that a pod must have to be touched at all, as the API takes them.
        label_only: Somebody else evicts what is labelled.
        dry_run: The API server tries it all and keeps nothing.
        because: What held BE; empty where nobody said.
    """

    uids: Collection[str]
    node: str
    namespaces: Sequence[str]
    selector: str
    label_only: bool = False
    dry_run: bool = False
    because: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        did: `evicted`, `labelled`, or what kept it from that: `budget`, `gone`; `kept` where BE is fed again.
        pod: NAMESPACE/NAME, with commas between those that are kept; empty where none was chosen.
        text: The same in words.
        left: Hand-offs that the hour still has.
    """

    did: str
    pod: str
    text: str
    left: int


def hand_off(api: Api, budget: Budget, asked: Asked) -> Outcome:
    """Label the newest pod that may be moved, for it has the least work to lose, and ask for its eviction.

    Where a disruption budget keeps that one, the next newest is tried.

    Raises:
        CheckFailed: There is no such pod.
        Declined: The API does it for none of them now; the newest one's answer.
        PermissionMissing, HostError: As `Api` and `Budget` raise them.
    """
    if not asked.dry_run and not budget.left():
        text = f"the budget of this hour is spent; the next hand-off may be in {budget.next_seconds() / 60.0:.0f} min"
        return Outcome("budget", "", text, 0)
    movable = sorted(_movable(api, asked), key=lambda pod: (pod.created, str(pod)), reverse=True)
    if not asked.dry_run:
        budget.spend()
    refused: Declined | None = None
    try:
        for pod in movable[:MOST_TRIES]:
            refusal = _put(api, pod, asked)
            if refusal is None:
                return _outcome(pod, asked, budget.left())
            refused = refused or refusal
        assert refused is not None
        raise refused
    except (Declined, PermissionMissing) as error:
        if not asked.dry_run:
            budget.give_back()
        if isinstance(error, Declined) and error.status in GONE:
            return Outcome("gone", str(pod), f"{pod} has gone by itself", budget.left())
        raise


def keep(api: Api, budget: Budget, asked: Asked) -> Outcome:
    """BE is fed again: take the label off its pods here that have it, so that nobody moves them any more.

    Raises:
        Declined, PermissionMissing, HostError: As `Api` and `Budget` raise them.
    """
    kept: list[str] = []
    refused: HostError | PermissionMissing | None = None
    for pod in _ours(_found(api, asked), asked):
        if STARVED not in pod.labels:
            continue
        try:
            api.label(pod, {STARVED: None}, {BECAUSE: None}, dry_run=asked.dry_run)
        except (HostError, PermissionMissing) as error:
            if not (isinstance(error, Declined) and error.status in GONE):
                refused = error
        else:
            kept.append(str(pod))
    if refused:  # the others have been kept
        raise refused
    names, be = ", ".join(kept), "would lose" if asked.dry_run else "lost"
    text = (
        f"{names} {be} the label {STARVED}: BE is fed again" if kept else f"no pod of BE here has the label {STARVED}"
    )
    return Outcome("kept", names, text, budget.left())


def be_pods(config: ServeConfig) -> frozenset[str]:
    """UIDs of the pods whose groups are BE's on this host now, or lie directly in one; HostError: BE is not there."""
    layout, knobs = Layout.detect(), Knobs(None, dry_run=True)
    groups, absent = list[Group](), None
    for workload in be_group(config, layout, make=False).workloads:
        try:
            groups += groups_of(workload, layout, knobs)
        except HostError as error:  # the others may be there
            absent = error
    if absent and not groups:
        raise absent
    return frozenset(uid for group in groups for uid in _uids(group.name, child_groups(knobs, group.directories[0])))


def _uids(name: str, children: Iterable[Path]) -> Iterator[str]:
    path = f"/{name.strip('/')}"
    found = [pod_uid(path)] if pod_uid(path) else [pod_uid(f"/{child.name}") for child in children]
    yield from (uid for uid in found if uid)


def _movable(api: Api, asked: Asked) -> list[Pod]:
    """The pods of which one may be handed off, at least one."""
    found = _found(api, asked)
    ours = _ours(found, asked)
    movable = [pod for pod in ours if _may_go(pod, label_only=asked.label_only)]
    if movable:
        return movable
    where = f"in namespace {' or '.join(asked.namespaces)} on node {asked.node}"
    if not found:
        raise CheckFailed(f"no pod {where} has the labels {asked.selector}; label those that may be moved")
    if not ours:
        raise CheckFailed(f"none of the {len(found)} pods {where} with the labels {asked.selector} is BE of this host")
    if asked.label_only:
        raise CheckFailed(f"each of the {len(ours)} pods of BE {where} has the label {STARVED} already")
    raise CheckFailed(
        f"nobody would start any of the {len(ours)} pods of BE {where} elsewhere: a Job or a Deployment has to own them"
    )


def _found(api: Api, asked: Asked) -> list[Pod]:
    """The pods of this node that may be touched by their labels."""
    return [pod for one in asked.namespaces for pod in api.pods(one, asked.node, asked.selector)]


def _ours(found: Iterable[Pod], asked: Asked) -> list[Pod]:
    """Those of them that are BE of this host, and go on."""
    return [pod for pod in found if pod.uid in asked.uids and not pod.ends]


def _may_go(pod: Pod, *, label_only: bool) -> bool:
    """Not labelled yet; for an eviction: somebody makes another one, and not on this very node."""
    return STARVED not in pod.labels if label_only else pod.controller not in ("", "DaemonSet", "Node")


def _put(api: Api, pod: Pod, asked: Asked) -> Declined | None:
    """Label a pod and have it evicted; the answer, where its disruption budget keeps it and it is as it was."""
    notes: Mapping[str, str] = {BECAUSE: asked.because} if asked.because else {}
    api.label(pod, {STARVED: "true"}, notes, dry_run=asked.dry_run)
    if asked.label_only:
        return None
    try:
        api.evict(pod, dry_run=asked.dry_run)
    except (Declined, PermissionMissing) as error:
        if STARVED not in pod.labels:
            with contextlib.suppress(HostError, PermissionMissing):  # that this one stays is told anyway
                api.label(pod, {STARVED: None}, {BECAUSE: None}, dry_run=asked.dry_run)
        if isinstance(error, Declined) and error.status == NOT_NOW:
            return error
        raise
    return None


def _outcome(pod: Pod, asked: Asked, left: int) -> Outcome:
    did = "labelled" if asked.label_only else "evicted"
    done = f"labelled {STARVED}=true" + ("" if asked.label_only else " and evicted")
    text = f"{pod} {'would be' if asked.dry_run else 'is'} {done}; {left} more within this hour"
    return Outcome(did, str(pod), text, left)
