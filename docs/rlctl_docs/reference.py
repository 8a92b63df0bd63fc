"""The reference: pages made from the code when the site is built, so that they cannot say anything else than it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from rlctl import cli
from rlctl.agents import catalogue
from rlctl.agents.managers.table import QuotaTable
from rlctl.agents.training.host_kinds import Hosts
from rlctl.agents.training.recipe import ALGORITHMS
from rlctl.agents.training.search.space import SpaceFile
from rlctl.bench.participants import Tuned
from rlctl.bench.scenarios import shipped_scenarios
from rlctl.bench.sim_scenario import SimScenario
from rlctl.commands.doctor import SERVE_NEEDS, examine
from rlctl.config.fields import attributes
from rlctl.config.serve import ServeConfig
from rlctl.envs import errors
from rlctl.envs.actions import LEAP_RATIO, MOVES, MOVES_VERSION, RISE_RATIO
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.applications import Placement
from rlctl.envs.experience import ABOVE_HIGH, AHEAD_RATIO, CALM, CALM_HIGH, CALM_LOW, MEMORY
from rlctl.envs.features import FEATURES
from rlctl.envs.host.apps.registry import Description
from rlctl.envs.host.events import KINDS
from rlctl.envs.host.partition.platform import PlatformFile
from rlctl.envs.observation import LAGS, MOST_PRICE, VERSION, Observer
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.telemetry import READINGS, Telemetry, Value, Why
from rlctl.envs.testbed.scenario import LiveScenario
from rlctl.log.record import Tick, tick_as_json
from rlctl.report.shadow_gate import Gate
from rlctl.safety.constants import MemoryBandwidth, MemoryPressure
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.symptoms import Alarm, Sign
from rlctl.safety.verdict import Bound, Reason, Verdict
from rlctl.serve.budget import ErrorBudget
from rlctl.serve.metrics import Metrics, ServiceFigures
from rlctl_docs.blocks import ROOT
from rlctl_docs.models import Key, keys, member_texts, section_text

COLUMNS = "100"
"""Width of the commands' help."""

Rows = Iterable[Iterable[object]]


def _table(head: str, rows: Rows) -> str:
    names = [name.strip() for name in head.split("|")]
    lines = [
        names,
        ["---"] * len(names),
        *([str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# Commands.


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and subcommand by its full name, with its parser."""
    for name, parser in cli.subcommands(cli.command_parser(cli.COMMANDS)).items():
        yield from _below(f"rlctl {name}", parser)


def _below(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for choice, inner in cli.subcommands(parser).items():
        yield from _below(f"{name} {choice}", inner)


def _commands() -> str:
    os.environ["COLUMNS"] = COLUMNS
    parts = ["# Commands\n\nAs `rlctl COMMAND --help` prints them.\n", _help("rlctl", cli.command_parser(()))]
    return "\n".join([*parts, *(_help(name, parser) for name, parser in commands())])


def _help(name: str, parser: argparse.ArgumentParser) -> str:
    level = "##" if name.count(" ") < 2 else "###"
    return f"{level} {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


# Files.


def _serve() -> str:
    return "\n".join([
        "# Serve configuration\n\nEvery key of the file that `rlctl serve --config` reads. `rlctl config show FILE` prints what is in effect,",
        "`rlctl config check FILE` says whether it is right, and `rlctl config schema` prints the same as below for editors.",
        "Unknown keys, and values out of range, are refused with file and line.\n",
        *_headed(ServeConfig, "", {}),
    ])  # fmt: skip


def _headed(model: type[BaseModel], above: str, seen: dict[type[BaseModel], str]) -> Iterator[str]:
    """A heading for each key; sections below it follow it."""
    for key in keys(model, above):
        level = "##" if not above else "###"
        yield f"{level} {key.path}\n\n{key.text} ({key.facts})\n"
        for inner in key.model:
            yield from _inner(inner, key, seen, several=len(key.model) > 1)


def _inner(model: type[BaseModel], key: Key, seen: dict[type[BaseModel], str], *, several: bool) -> Iterator[str]:
    if model in seen:
        yield f"{section_text(model)} Its keys are those of `{seen[model]}`.\n"
        return
    kind = model.model_fields.get("kind")
    above = f"{key.path} ({kind.annotation.__args__[0]})" if several and kind else key.path  # type: ignore[union-attr]
    seen[model] = above
    if several and kind:
        yield f"### {above}\n\n{section_text(model)}\n"
    yield from _headed(model, above, seen)


FILES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("Scenarios, live", "`configs/scenarios/*.yaml` with `plant: host`; for `rlctl bench` and `rlctl calibrate`.", LiveScenario),
    ("Scenarios, simulated", "`configs/scenarios/*.yaml` with `plant: sim`; for `rlctl bench` and `rlctl evaluate`.", SimScenario),
    ("Safety profiles", "`configs/safety/*.yaml`: the shield's constants; key `shield` of a serve configuration, `--shield`.", Profile),
    ("Host profiles", "`configs/plants/*.yaml`: the simulated hosts, or what `rlctl calibrate` has fitted.", HostProfile),
    ("Quota tables", "`PROFILE.table.yaml` of `rlctl calibrate`: what the manager `table` looks up.", QuotaTable),
    ("Training hosts", "`configs/training/hosts.yaml`: what `rlctl train` learns on.", Hosts),
    ("Search spaces", "`configs/tuning/*.yaml`: what `rlctl tune` searches.", SpaceFile),
    ("Tuned managers", "`configs/managers/tuned.yaml`, which `scripts/tune-managers` writes.", Tuned),
    ("Platforms", "`configs/platform/*.yaml`: parts and clusters of a host, for `rlctl partition`.", PlatformFile),
    ("Promotion gate", "`configs/shadow/gate.yaml`, for `rlctl shadow report --gate`.", Gate),
    ("Applications", "The description of a best-effort application, for `rlctl app`.", Description),
)  # fmt: skip


def _files() -> str:
    parts = [
        "# Other files\n\nWhat the YAML files of each command may say. A key that is nobody's is refused with file and line.\n"
    ]
    for title, where, model in FILES:
        parts += [f"## {title}\n\n{where}\n", *_tables(model, "", {})]
    parts.append(
        "## Training recipes\n\n`configs/training/ALGORITHM.yaml`, below `rlctl/SimHost-v0:`. *The constructor's* are keys that"
    )
    parts.append("Stable-Baselines3 documents with the algorithm of this name.\n")
    for name, recipe in ALGORITHMS.items():
        parts += [f"### {name}\n", *_tables(recipe, "", {}, "*The constructor's.*")]
    return "\n".join(parts)


def _tables(model: type[BaseModel], above: str, seen: dict[type[BaseModel], str], otherwise: str = "") -> Iterator[str]:
    own = list(keys(model, above))
    seen[model] = above
    yield _table("key | what it may be | default | meaning", (_row(key, otherwise) for key in own))
    for key in own:
        for inner in key.model:
            if inner not in seen:
                yield f"Below `{key.path}`: {section_text(inner)}\n"
                yield from _tables(
                    inner, f"{key.path}[]" if key.kind.startswith(("list", "mapping")) else key.path, seen, otherwise
                )


def _row(key: Key, otherwise: str) -> tuple[str, ...]:
    kind = ", ".join(filter(None, (key.kind, key.unit)))
    return f"`{key.path}`", kind, key.default or "required", key.text or otherwise


# What a tick says.

EVERYTHING = Telemetry(1.0, 0.01).but(**dict.fromkeys(READINGS, Value(0.5, 0.25)))
LEAST = Allocation(0.01, 1, frozen=True)


def _tick() -> Tick:
    verdict = Verdict(LEAST, Allocation(1.0, 2), (Bound("slack-gate", Reason.SLACK_NEGATIVE, LEAST),))
    shares = {"1:encoder": Placement(0, "all", 1.0), "2:batch": None}
    alarm = Alarm(Sign.LATE, "", 0.0, 0.0)
    return Tick(
        0, 1e9, EVERYTHING, LEAST, verdict.proposed, verdict, LEAST, "ppo", shares=shares, alarm=alarm, price=0.5
    )


def metric_families() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Every metric as a scraper sees it: name, type, text, labels."""
    budgets = (ErrorBudget("lc", 0.01, 1.0),)
    metrics = Metrics("ppo", ("responsive", "0a1b"), Limits(2), 1.0, ServiceFigures(budgets=budgets))
    metrics.write(_tick())
    found = []
    for family in metrics.collect():
        labels = tuple(getattr(family, "_labelnames", ())) or tuple(
            dict.fromkeys(key for one in family.samples for key in one.labels)
        )
        name = family.name + ("_total" if family.type == "counter" else "")
        found.append((name, family.type, family.documentation, tuple(label for label in labels if label != "le")))
    return found


def _metrics() -> str:
    parts = ["# Metrics\n\nAt `http://ADDRESS/metrics`, with section `metrics` of the serve configuration. A reading that is missing has no sample.",
             "Times are in seconds, ratios are from 0 to 1; what ends in `_total` only grows.\n"]  # fmt: skip
    for name, kind, text, labels in metric_families():
        unit = next((word for end, word in METRIC_UNITS.items() if name.removesuffix("_total").endswith(end)), "")
        by = f"; labels {', '.join(f'`{label}`' for label in labels)}" if labels else ""
        parts.append(f"## {name}\n\n{text} ({kind}{f', {unit}' if unit else ''}{by})\n")
    return "\n".join(parts)


METRIC_UNITS = {
    "_seconds_per_request": "seconds",
    "_seconds": "seconds",
    "_ratio": "ratio",
    "_cpus": "CPUs",
    "_bytes": "bytes",
    "_info": "1",
}


def _ticklog() -> str:
    record, said = tick_as_json(_tick()), attributes(Tick)
    names = {"tick": "index", "ts": "wall_seconds"}
    texts = {
        "time_seconds": "Monotonic clock of the host when the tick was read; replays run on it.",
        "target_seconds": "The LC's tail-latency target.",
        "slack_ratio": "(target - latency) / target; null where the latency is missing.",
        "readings": 'Each reading: `{"value", "age"}`, or `{"missing", "detail", "age"}` with the reason; a tail also has `samples` and `window`.',
        "counters": "Further readings, likewise.",
        "verdict": "What the shield allowed, as `before`.",
        "bounds": "The bounds that held BE where it was, and those of people and the service: guard, reason, the most that it allowed, its figures.",
        "alarm": "Only where BE was held before the period was over: the sign and its figures, when it came, how long the answer took, and what failed. `before` was in force until then.",
        "price": "Only where an error budget makes a violation cost learned policies more or less than 1: what it cost.",
        "shares": "Only with applications: working mode, cluster and CPUs of each; null for one that is deferred.",
        "before": "The allocation in force before: quota in CPUs (null is none), number of CPUs of the cpuset, frozen or not.",
    }  # fmt: skip
    rows = [(f"`{name}`", texts.get(name) or said[names.get(name, name)]) for name in record]
    rows += [("`lc`", "Only with several LCs: the one that ruled, whose readings those above are."),
             ("`lcs`", "Only with several LCs: target and readings of each.")]  # fmt: skip
    readings = attributes(Telemetry)
    return "\n".join([
        "# Tick log\n\n`ticks.jsonl` in `log.directory`: one JSON object a line, sealed with its checksum. Before the first tick of a run, and at",
        "the head of each rotated file, stands a header with version, policy, shield profile and limits. `rlctl why` says a tick in words,",
        "`rlctl replay` checks a log. What is not finite is `\"nan\"`, `\"inf\"` or `\"-inf\"`.\n",
        "## Fields of a tick\n", _table("field | meaning", rows),
        "## Readings\n", _table("reading | meaning", ((f"`{name}`", readings[name]) for name in READINGS)),
        "## Events\n\nLines of `events` begin with one of these.\n", _table("event | meaning", ((f"`{kind}`", text) for kind, text in KINDS.items())),
    ])  # fmt: skip


# Tables of the policy's world.


def _observation() -> str:
    rows = [
        (f"`{f.name}`", f.unit, f"{f.low:g} to {f.high:g}", f.scale.value, "yes" if f.optional else "no")
        for f in FEATURES
    ]
    moves = []
    for place, move in enumerate(MOVES):
        quota = (
            "as it is"
            if move.quota_ratio is None
            else f"towards {100 * move.quota_ratio:g} %"
            if move.quota_ratio
            else "the minimum"
        )
        cpuset = (
            "to one CPU" if move.cpuset_cpus < -1000 else f"{move.cpuset_cpus:+d}" if move.cpuset_cpus else "as it is"
        )
        frozen = {None: "as it is", True: "frozen", False: "thawed"}[move.frozen]
        moves.append((place, f"`{move.name}`", quota, cpuset, frozen))
    size = Observer(Limits(2), 1.0).size
    return "\n".join([
        f"# Observation and moves\n\nWhat learned policies see and may do. Table {VERSION} of observations and {MOVES_VERSION} of moves: a bundle names both, and one",
        "that was made for others is refused.\n",
        f"## Observation\n\nA vector of {size} numbers from -1 to 1: for each of the ticks {', '.join(map(str, LAGS))} ago, every feature in this order, then a flag",
        "(+1 there, -1 missing) for each that may be missing, then the latency's age. A missing feature is 0. Ranges are bent by the scale, then mapped to [-1, 1].\n",
        f"After all ticks comes what the host has taught: {', '.join(f'`{name}`' for name in MEMORY)}, and flags for the first two. These are shares of BE's CPUs on a",
        f"square root's scale: the most that held lately at this load and at {AHEAD_RATIO:g} times it, and the most that nothing speaks against. Then {' and '.join(f'`{name}`' for name in CALM)},",
        f"with a flag: the latency by the target that this load has here at its best ({CALM_LOW:g} to {CALM_HIGH:g}), and how many times that it is now (1 to {ABOVE_HIGH:g}). The last number is the",
        f"price of a violation: 0 where it costs what it did on the mean training host, -1 at a {MOST_PRICE:g}th and 1 at {MOST_PRICE:g} times of it.\n",
        _table("feature | unit | range | scale | may be missing", rows),
        f"## Moves\n\nOne of {len(MOVES)}. A quota rises by at most {100 * RISE_RATIO:g} % of BE's CPUs in a tick and falls at once; `leap` lets it",
        f"rise by {100 * LEAP_RATIO:g} %, where the shield allows growth of that kind.\n",
        _table("index | move | quota | cpuset | freezer", moves),
    ])  # fmt: skip


def _reasons() -> str:
    texts, missing, signs = member_texts(Reason), member_texts(Why), member_texts(Sign)
    optional = {
        "memory_pressure": MemoryPressure(hold_ratio=0.05, suspend_ratio=0.2, after_ticks=3, calm_seconds=10.0),
        "memory_bandwidth": MemoryBandwidth(limit_ratio=0.9),
    }
    guards = load_profile("responsive").model_copy(update=optional).guards()
    return "\n".join([
        "# Guards and reasons\n\nEvery word that rlctl gives as a reason is one of these, in logs, metrics and `rlctl why` alike.\n",
        "## Guards\n\nThey are asked in this order, and the tightest bound counts.\n",
        *(f"### {guard.name}\n\n{section_text(type(guard))}\n" for guard in guards),
        "## Reasons of guards\n", *(f"### {reason}\n\n{texts[reason.name]}\n" for reason in Reason),
        "## Signs between the ticks\n", *(f"### {sign}\n\n{signs[sign.name]}\n" for sign in Sign),
        "## Why a reading is missing\n", *(f"### {why}\n\n{missing[why.name]}\n" for why in Why),
    ])  # fmt: skip


def _managers() -> str:
    parts = ["# Managers\n\nWho can decide; `rlctl managers` prints the same. Those that are shielded are judged behind the shield in a benchmark, the",
             "others bare, as they were published; `rlctl serve` shields every one. Options are for `policy.options` of a serve configuration.\n"]  # fmt: skip
    for name, entry in catalogue.HEURISTICS.items():
        shield = "shielded" if entry.manager.shielded else "bare"
        parts.append(f"## {name}\n\n{entry.law} ({shield}; {entry.source})\n")
        if options := catalogue.options(name):
            parts.append(_table("option | default", ((f"`{key}`", f"`{value}`") for key, value in options.items())))
    parts += [f"## {name}\n\n{one.law} (learned; {one.source})\n" for name, one in catalogue.LEARNED.items()]
    parts += [
        f"## {name}\n\n{one.law} (a bound, simulator only; {one.source})\n" for name, one in catalogue.BOUNDS.items()
    ]
    parts += [
        f"## {name}\n\n{one.law} (a setting of the kernel, live scenarios with a {one.resource} only; {one.source})\n"
        for name, one in catalogue.ANSWERS.items()
    ]
    return "\n".join(parts)


def _scenarios() -> str:
    parts = ["# Scenarios\n\nThose that ship; `rlctl scenarios` lists them, `--json` prints everything in them.\n"]
    for name, one in shipped_scenarios().items():
        kind = "live" if one.plant == "host" else "simulated"
        parts.append(
            f"## {name}\n\n{one.description} ({kind}; {one.duration_seconds:g} s a run, a tick each {one.tick_seconds:g} s)\n"
        )
    return "\n".join(parts)


def _requirements() -> str:
    parts = ["# What a host must have\n\n`rlctl doctor` looks for each of these, and says why it is there or not. Without those marked *needed* `rlctl serve` cannot",
             "run; everything else only makes it know or do less.\n"]  # fmt: skip
    for one in examine():
        lost = (
            f"Without it: {one.disables} cannot be had."
            if one.disables
            else "It is good to know, and nothing needs it."
        )
        parts.append(f"## {one.name}\n\n{'*Needed.* ' if one.name in SERVE_NEEDS else ''}{lost}\n")
    return "\n".join(parts)


def _exit_codes() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RlctlError)]
    raised: dict[int, list[str]] = {}
    for kind in kinds:
        if kind is not errors.RlctlError:
            raised.setdefault(kind.exit_code, []).append((kind.__doc__ or "").split("\n")[0])
    texts = {
        0: "Success.",
        1: "A check that you asked for came out negative.",
        2: "The command line is wrong.",
        75: "The host could not do it now; a retry may succeed.",
        77: "A permission is missing.",
        78: "A file or an argument says something impossible.",
        130: "Ended by Ctrl-C; ended by signal n it is 128 + n.",
    }
    parts = [
        "# Exit codes\n\nErrors are one line on stderr that names the file, line or key and the way out. Results are on stdout, everything else on stderr.\n"
    ]
    for code, text in texts.items():
        why = "".join(f"- {one}\n" for one in raised.get(code, ()))
        parts.append(f"## {code}\n\n{text}\n\n{why}")
    return "\n".join(parts)


# What it reads and writes beside its configuration.

VARIABLES = {
    "RLCTL_THREADS": "Set by `rlctl app run` for the application: threads to begin with.",
    "RLCTL_MODE_FILE": "Likewise: the file with its mode.",
    "NOTIFY_SOCKET": "systemd's: readiness, watchdog and status are told there.",
    "JOURNAL_STREAM": "systemd's: log lines then carry their level and no time.",
    "RAY_ADDRESS": "Ray's: the cluster that `--ray auto` means.",
    "MINARI_DATASETS_PATH": "Minari's: the folder of datasets.",
    "XDG_RUNTIME_DIR": "Where a testbed without root keeps its records.",
    "XDG_CACHE_HOME": "Where compiled helpers of the testbed are kept; `~/.cache` otherwise.",
    "TERM": "`dumb` makes `rlctl top` and progress print plain lines.",
    "NO_COLOR": "Progress is then plain lines.",
    "PATH": "Where perf and the testbed's programs are found; `/usr/sbin` and `/sbin` are looked in too.",
    "SUDO_USER": "Whom a service is told of when root asks it something, such as `rlctl pause`.",
    "RLCTL_SHARE": "Set for `be.starved.command`: the share of its CPUs that BE had, such as `0.0100`.",
    "RLCTL_FED": "Likewise: `1` when BE is fed again, so that nothing is to be moved, else `0`.",
    "RLCTL_REASON": "Likewise: what held BE most of the time.",
    "OPENBLAS_NUM_THREADS": "Set to 1 unless it is set: rlctl's matrices are small.",
}
"""By name; a test finds every variable that the code reads."""


def environment_variables() -> set[str]:
    """The variables that rlctl's code reads, by looking through it."""
    found: set[str] = set()
    pattern = re.compile(
        r"""environ(?:\.get|\.setdefault)?[\[(]\s*["']([A-Z_]+)["']|["']([A-Z_]+)["'] (?:not )?in (?:os\.)?environ"""
    )
    for folder in ("rlctl", "envs", "safety", "agents"):
        for path in (ROOT / folder).rglob("*.py"):
            found.update(name for match in pattern.findall(path.read_text()) for name in match if name)
    return found


def _paths() -> str:
    kept = [
        ("`/var/lib/rlctl/journal.jsonl`", "`state_directory`: the original value of every kernel file that was written, until it is put back by `rlctl restore`."),
        ("`/var/lib/rlctl/lock`", "One controller for each state directory."),
        ("`/var/lib/rlctl/control.sock`", "Where `rlctl pause` and its kin reach the service."),
        ("`/var/lib/rlctl/holds.json`", "What they said, so that a restart does not forget it."),
        ("`/var/lib/rlctl/memory.json`", "What was learned of the host; `rlctl inspect` shows it."),
        ("`/var/lib/rlctl/partition/journal.jsonl`", "What `rlctl partition apply` moved, until `undo`."),
        ("`/var/log/rlctl/ticks.jsonl`", "`log.directory`: the tick log, and `ticks.jsonl.1` to `.N` (`log.keep`) before it."),
        ("`/var/log/rlctl/shadow.jsonl`", "What shadows would have done, of `rlctl shadow`."),
        ("`/run/rlctl/apps/`", "`be.applications`: who is registered, and below it the mode of each."),
        ("`/run/rlctl/testbed/`", "What testbeds started, so that a killed one is cleared up; without root in `$XDG_RUNTIME_DIR/rlctl`."),
        ("`~/.cache/rlctl/`", "Compiled helpers of the testbed."),
        ("`/rlctl-be`, `/rlctl-host`, `/rlctl-mdev`", "Control groups made for applications and partitions, where they are used."),
        ("`/sys/fs/resctrl/rlctl-be`, `rlctl-lc`", "Classes of cache and memory bandwidth, while a service with `resources.resctrl` runs."),
        ("`--out`, `--report`, `--json`", "What benchmarks, trainings and measurements write, where you say; nothing is written beside that."),
    ]  # fmt: skip
    return "\n".join([
        "# Files and environment\n\n## What rlctl writes\n\nBeside kernel files of the groups that it controls, which it puts back. Paths are the defaults.\n",
        _table("where | what", kept),
        "## Environment variables\n", _table("variable | meaning", ((f"`{name}`", text) for name, text in VARIABLES.items())),
    ])  # fmt: skip


PAGES: Mapping[str, Callable[[], str]] = {
    "commands": _commands,
    "serve": _serve,
    "files": _files,
    "metrics": _metrics,
    "observation": _observation,
    "reasons": _reasons,
    "managers": _managers,
    "scenarios": _scenarios,
    "requirements": _requirements,
    "exit-codes": _exit_codes,
    "ticklog": _ticklog,
    "paths": _paths,
}
"""By name, in the order of the contents."""


def write(folder: Path) -> None:
    """Make every page anew in a folder; one that is as it was keeps its time, so that it is not built again."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        text, path = page(), folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
