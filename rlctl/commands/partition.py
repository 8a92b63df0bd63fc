"""`rlctl partition apply|show|undo`: one host divided in a part for everything and a part for what rlctl manages."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.outputs import print_json
from rlctl.envs.errors import CheckFailed, HostError, PermissionMissing, printable
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import STATE_DIR
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.partition.moving import Choice, Left
from rlctl.envs.host.partition.record import Stage, current_record, undo
from rlctl.log.progress import say
from rlctl.report.page import render

if TYPE_CHECKING:
    from rlctl.envs.host.partition.view import Row

HEADER = ("group", "CPUs", "memory nodes", "quota CPUs", "memory MB", "exclusive", "processes")

MOST_NAMES = 6
"""Of tasks that stay for one reason; --json has all."""

EXAMPLES = """examples:
  rlctl partition apply --dry-run                       # what would be made and moved here
  rlctl partition apply --platform two-core --exclusive
  rlctl partition apply --platform my-host.yaml --leave sshd --take user.slice
  rlctl partition show
  rlctl partition undo                                  # every task back, every group removed

Killed half-way, `rlctl restore` brings everything back. More: docs/howto/partition.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_apply(actions.add_parser("apply", help="make the groups and move everything movable to the host's part"))
    for action, summary in (
        ("show", "the groups that stand, and what was left outside of them"),
        ("undo", "move every task back where it came from, and remove the groups"),
    ):
        _add_common(actions.add_parser(action, help=summary))


def _add_apply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--platform", metavar="NAME|FILE", help="a shipped description or your own; default: discover")
    parser.add_argument("--exclusive", action="store_true", help="no other group may use the managed CPUs")
    parser.add_argument(
        "--take", action="append", default=[], metavar="GROUP", help="move the tasks of this group too; repeatable"
    )
    parser.add_argument(
        "--leave", action="append", default=[], metavar="PID|NAME", help="leave this process alone; repeatable"
    )
    parser.add_argument("--kernel-threads", action="store_true", help="move those kernel threads that may be moved")
    parser.add_argument(
        "--within", default="", metavar="GROUP", help="divide this group only: its tasks, its CPUs; default: the host"
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be made and moved")
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", type=Path, default=STATE_DIR, metavar="DIR", help=f"default: {STATE_DIR}")
    parser.add_argument("--json", action="store_true", help="the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; CheckFailed means that no partition stands, HostError that all is as before."""
    return {"apply": _apply, "show": _show, "undo": _undo}[args.action](args)


def _apply(args: argparse.Namespace) -> int:
    from rlctl.envs.host.partition.apply import Wish, apply, plan  # with pydantic, which undo can do without
    from rlctl.envs.host.partition.platform import load_platform

    layout, kernel, within = Layout.detect(), KernelFiles(), args.within.strip("/")
    cpuset = Group.open(layout, within, Knobs(None, kernel)).cpuset if within else None
    platform = load_platform(args.platform, within=within, cpus=cpuset.effective() if cpuset else None)
    wish = Wish(args.exclusive, tuple(args.take), Choice(frozenset(args.leave), args.kernel_threads))
    say(f"platform: {platform.why}")
    if args.dry_run:
        done = plan(platform, wish, layout=layout, kernel=kernel)
    elif os.geteuid() != 0 and not within:
        raise PermissionMissing("the whole host can be divided by root only; divide a group of yours with --within")
    else:
        done = apply(platform, args.state, wish, layout=layout, kernel=kernel, say=say)
    if args.json:
        moved = {str(group): count for group, count in done.moved.items()}
        print_json({"why": platform.why, "groups": done.made, "moved": moved, "left": list(map(asdict, done.left))})
        return 0
    make, move = ("would make", "would move") if args.dry_run else ("made", "moved")
    tasks = [f"{count} tasks of {printable(str(group))}" for group, count in done.moved.items()] or ["no task"]
    made = [f"{make} {group}" for group in done.made]
    print(*made, *(f"{move} {some} to {platform.host_group}" for some in tasks), *_left_in_words(done.left), sep="\n")
    return 0


def _show(args: argparse.Namespace) -> int:
    """Print what stands; CheckFailed: it is not whole."""
    from rlctl.envs.host.partition.view import rows, tasks_outside

    recorded = current_record(args.state)
    if recorded is None or not recorded.plan:
        raise CheckFailed(f"no partition stands, as {args.state} has it: `rlctl partition apply` makes one")
    layout, kernel, plan = Layout.detect(), KernelFiles(), recorded.plan
    found, choice = rows(plan, layout, kernel), Choice(frozenset(plan["leave"]), plan["kernel_threads"])
    left, others = tasks_outside(recorded.mounts, layout, kernel, choice, Path("/proc"))
    if args.json:
        groups = [asdict(row) | {"quota_cpus": row.quota_cpus if row.quota_cpus < math.inf else None} for row in found]
        by_group = [{"group": group, "tasks": count} for group, count in others]
        print_json({"stage": recorded.stage, "groups": groups, "left": list(map(asdict, left)), "others": by_group})
    else:
        told = [
            f"another program's group {printable(str(group))}: {n} tasks; --take moves them too" for group, n in others
        ]
        if len(told) > MOST_NAMES:
            told[MOST_NAMES:] = [f"and {len(told) - MOST_NAMES} more groups of other programs"]
        print(plan["why"], render([HEADER, *map(_cells, found)]), *_left_in_words(left), *told, sep="\n")
    wanted = 2 + len(plan["clusters"])
    if recorded.stage is not Stage.STANDING:
        raise CheckFailed(f"the partition is not whole (it was left {recorded.stage}): `rlctl partition undo`")
    if len(found) < wanted:
        raise CheckFailed(f"{wanted - len(found)} of its {wanted} groups are gone: `rlctl partition undo`")
    return 0


def _undo(args: argparse.Namespace) -> int:
    undone = undo(args.state, kernel=KernelFiles())
    if args.json:
        print_json(undone.as_json())
    else:
        print(undone)
    if not undone.ok:
        raise HostError(f"{undone.failed[0]}; {undone.note}")
    return 0


def _left_in_words(left: Iterable[Left]) -> list[str]:
    """One line for each group and reason."""
    kinds: dict[tuple[Path, str], list[str]] = {}
    for one in left:
        kinds.setdefault((one.group, one.why), []).append(printable(f"{one.tid} {one.name}"))
    return [
        f"left in {printable(str(group))}: {len(names)} tasks: {why} ({', '.join(names[:MOST_NAMES])}"
        + (", ...)" if len(names) > MOST_NAMES else ")")
        for (group, why), names in kinds.items()
    ]


def _cells(row: Row) -> tuple[str, ...]:
    quota = "-" if math.isinf(row.quota_cpus) else f"{row.quota_cpus:g}"
    memory = "-" if row.memory_bytes is None else f"{row.memory_bytes >> 20}"
    cells = row.cpus, row.memory_nodes or "-", quota, memory, "yes" if row.exclusive else "no", str(row.processes)
    return (printable(row.group), *cells)
