"""`rlctl dataset`: transitions from logs and from simulated hosts as a Minari dataset, and what one is made of."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rlctl.agents.training.host_kinds import load_hosts
from rlctl.agents.training.offline.dataset import DatasetFolder, Origin, dataset_folder, read_origin, require_minari
from rlctl.agents.training.offline.writer import Recording, write
from rlctl.agents.training.run_folder import code_version
from rlctl.bench.participants import no_idle_class, refuse_models
from rlctl.bench.scenarios import load_scenario
from rlctl.bench.sim_scenario import SUITE, SimScenario
from rlctl.commands.arguments import number, positive
from rlctl.commands.options import positive_int, refuse_given, require_names
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import ConfigError
from rlctl.learn.dataset_sim import RecordingPlan, grounds_of_hosts, grounds_of_scenarios, record
from rlctl.learn.dataset_sources import recording_of
from rlctl.log.progress import progress, say
from rlctl.report.page import render
from rlctl.safety.profile import DEFAULT, load_profile

EXAMPLES = """examples:
  rlctl dataset export /var/log/rlctl --out nginx-v0
  rlctl dataset export report/feedforward-1.jsonl runs/live/1 --shield measured --out ./nginx
  rlctl dataset record --managers prm-hybrid-tuned,feedforward --hosts 96 --out ./hosts
  rlctl dataset show ./hosts
  rlctl train --offline ./hosts --algo cql

A source is a tick log of `rlctl serve` (its folder, or a file of it), a log in the report of a live `rlctl bench`, or
the folder of an `rlctl train --plant host`. What no policy can be blamed for is left out and counted. An ID (nginx-v0)
is placed where Minari looks for it: below MINARI_DATASETS_PATH or ~/.minari/datasets; anything else is a folder.
"""

MANAGERS = "prm-hybrid-tuned,feedforward,heracles,greedy-shield"


SHARE = number(float, lambda value: 0.0 <= value <= 1.0, "is not a share from 0 to 1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = actions.add_parser("export", help="from tick logs and live training runs")
    export.add_argument("sources", type=Path, nargs="+", metavar="SOURCE", help="tick logs, folders of runs")
    export.add_argument(
        "--shield", metavar="NAME|FILE", help="of logs that do not say theirs, as those of bare managers"
    )
    record = actions.add_parser("record", help="from simulated hosts under managers, with a little exploration")
    record.add_argument("--managers", default=MANAGERS, metavar="A,B,...", help=f"default: {MANAGERS}")
    record.add_argument("--scenario", metavar="A,B,...|all", help="record on these, on training seeds")
    record.add_argument("--seeds", type=positive_int, metavar="N", help="of each scenario (default: 1)")
    record.add_argument("--duration", type=positive, metavar="S", help="longest run of a scenario (default: its own)")
    record.add_argument("--hosts", type=positive_int, metavar="N", help="record on so many randomised training hosts")
    record.add_argument("--hosts-file", metavar="FILE", help="and their kinds (default: configs/training/hosts.yaml)")
    record.add_argument("--explore", type=SHARE, default=0.2, metavar="SHARE", help="ticks with another move: 0.2")
    record.add_argument("--seed", type=int, default=0, metavar="N", help="of the training hosts, and of exploration")
    record.add_argument("--shield", metavar="NAME|FILE", help=f"of scenarios: {DEFAULT}")
    for one in (export, record):
        one.add_argument("--out", required=True, metavar="ID|DIR", help="where the dataset goes")
    show = actions.add_parser("show", help="what a dataset is made of")
    show.add_argument("dataset", metavar="ID|DIR")
    for one in (export, record, show):
        one.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; the table goes to stdout, all else to stderr."""
    if args.action == "show":
        place = dataset_folder(args.dataset)
        _show(args, place, read_origin(place))
        return 0
    require_minari()
    place = dataset_folder(args.out)
    recordings = _open_exported(args) if args.action == "export" else _open_recorded(args)
    origin = write(place, recordings, code_version())
    say(f"{place.folder}: dataset {place.name}")
    _show(args, place, origin)
    return 0


def _open_exported(args: argparse.Namespace) -> Iterator[Recording]:
    safety = load_profile(args.shield) if args.shield else None
    for source in args.sources:
        yield recording_of(source, safety, lambda damage: say(f"warning: {damage}"))


def _open_recorded(args: argparse.Namespace) -> Iterator[Recording]:
    managers = require_names("--managers", args.managers)
    refuse_models(managers)
    if "cpu-idle" in managers:
        raise ConfigError(f"cpu-idle: {no_idle_class(live=False)}; leave it out")
    grounds = list(_grounds(args))
    for name in managers:
        grounds[0].policy(name)  # unknown ones are told before anything is recorded
    with progress(len(grounds), "kinds of run") as done:
        for ground in grounds:
            yield record(ground, managers, args.explore, args.seed)
            done(ground.course.name)


def _grounds(args: argparse.Namespace) -> Iterator[RecordingPlan]:
    if not (args.scenario or args.hosts):
        raise ConfigError("nothing to record on: give --hosts N, --scenario all, or both")
    if not args.hosts:
        refuse_given(args, ("hosts_file",), "goes with --hosts N")
    if not args.scenario:
        refuse_given(args, ("seeds", "duration", "shield"), "goes with --scenario")
    else:
        names = SUITE if args.scenario == "all" else require_names("--scenario", args.scenario)
        scenarios = [load_scenario(name) for name in names]
        simulated = [one for one in scenarios if isinstance(one, SimScenario)]
        if len(simulated) < len(scenarios):
            raise ConfigError(
                f"{args.scenario}: a live scenario leaves tick logs (`rlctl bench --report`); export those"
            )
        safety = load_profile(args.shield or DEFAULT)
        yield from grounds_of_scenarios(simulated, args.seeds or 1, safety, args.duration)
    if args.hosts:
        hosts = load_hosts(Path(args.hosts_file) if args.hosts_file else None)
        yield from grounds_of_hosts(hosts, args.hosts, args.seed)


def _show(args: argparse.Namespace, place: DatasetFolder, origin: Origin) -> None:
    if args.json:
        print_json({"id": place.name, "folder": str(place.folder), **origin.model_dump(mode="json")})
        return
    print(
        f"{place.name}: {origin.transitions} transitions of {origin.ticks} ticks of {origin.tick_seconds:g} s in "
        f"{origin.episodes} episodes, sha256 {origin.sha256[:12]}, rlctl {origin.rlctl} ({origin.code})"
    )
    cut = ", ".join(f"{reason} {count}" for reason, count in origin.censored.items())
    print(f"left out and cut for: {cut or 'nothing'}\n")
    policies: list[tuple[str, ...]] = [("policy", "transitions", "QoS %", "BE %", "override %", "explored %")]
    for name, one in origin.policies.items():
        shares = (one.be_percent, one.override_percent, one.explored_percent)
        policies.append((name, str(one.transitions), f"{one.qos_percent:.2f}", *(f"{share:.1f}" for share in shares)))
    sources: list[tuple[str, ...]] = [("source", "kind", "host", "shield", "hosts", "ticks", "transitions", "sha256")]
    for source in origin.sources:
        host = f"{source.host} {source.host_digest}".strip()
        shield = f"{source.shield} {source.shield_digest}".strip() or "none"
        counts = map(str, (source.hosts, source.ticks, source.transitions))
        sources.append((source.name, source.kind, host, shield, *counts, source.sha256[:12]))
    print(render(policies), "", render(sources), sep="\n")
