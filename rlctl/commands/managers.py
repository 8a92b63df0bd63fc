"""`rlctl managers`: who can decide, and whether one keeps what every manager promises."""

from __future__ import annotations

import argparse
import json

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """examples:
  rlctl managers
  rlctl managers --json
  rlctl managers check ./toy.py:Toy

A benchmark judges the `shielded` ones behind the shield and the others bare, as they were published;
`rlctl serve` shields every one of them. A `bound` needs the plant itself and runs in the simulator only.
A `learned` policy is shielded, its `-bare` twin is for benchmarks; the path of any other bundle's folder, with a slash
in it, is a name as well. A class of your own is FILE.py:CLASS, for `rlctl bench`, `rlctl replay` and `check`, which
runs it through odd readings and exits with 1 where it breaks a promise.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="the list, or what `check` found, as JSON")
    actions = parser.add_subparsers(dest="action", metavar="[check NAME]")
    check = actions.add_parser("check", help="what every manager promises, tried on one")
    check.add_argument("name", metavar="NAME|FILE.py:CLASS")
    check.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="what was found, as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CheckFailed: `check` found a promise that is not kept.
        PolicyError: There is no such manager, or its code cannot be loaded.
    """
    from rlctl.agents import catalogue

    if args.action == "check":
        return _check(args.name, as_json=args.json)
    if args.json:
        bounds = [{"name": name, "law": one.law, "source": one.source} for name, one in catalogue.BOUNDS.items()]
        learned = [_learned(name) for name in catalogue.LEARNED]
        managers = [_plain(name) for name in catalogue.NAMES]
        print(json.dumps({"managers": managers, "learned": learned, "bounds": bounds}))
        return 0
    width = max(map(len, (*catalogue.NAMES, *catalogue.LEARNED, *catalogue.BOUNDS)))
    for name, entry in catalogue.TABLE.items():
        shield = "shielded" if entry.manager.shielded else "bare"
        print(f"{name:{width}}  {shield:8}  {entry.law} [{entry.source}]")
    for name, policy in catalogue.LEARNED.items():
        reason = catalogue.lacking(name)
        print(
            f"{name:{width}}  {'learned':8}  {policy.law} [{policy.source}]"
            + (f"; not here: {reason}" if reason else "")
        )
    for name, bound in catalogue.BOUNDS.items():
        print(f"{name:{width}}  {'bound':8}  {bound.law} [{bound.source}; simulator only]")
    return 0


def _check(name: str, *, as_json: bool) -> int:
    from rlctl.agents import catalogue, own
    from rlctl.agents.conformance import broken
    from rlctl.envs.errors import CheckFailed, PolicyError

    if name in catalogue.LEARNED or ("/" in name and catalogue.is_known(name)):
        raise PolicyError(f"{name} is a learned policy, which promises nothing by itself: see `rlctl evaluate`")
    own.build(name)  # what cannot be made at all is told as such
    found = list(broken(lambda: own.build(name)))
    if as_json:
        checks = [{"name": check, "promise": promise, "broken": what} for check, promise, what in found]
        print(json.dumps({"manager": name, "checks": checks}))
    else:
        for check, promise, what in found:
            print(f"{'FAILED' if what else 'ok':6}  {check}: {promise}" + (f"\n        {what}" if what else ""))
    if failed := [check for check, _, what in found if what]:
        raise CheckFailed(f"{name} breaks {len(failed)} of {len(found)} promises: {', '.join(failed)}")
    return 0


def _learned(name: str) -> dict[str, object]:
    from rlctl.agents import catalogue
    from rlctl.agents.served.learned import BARE

    one = catalogue.LEARNED[name]
    missing = catalogue.lacking(name) or None
    return {"name": name, "law": one.law, "source": one.source, "shielded": not name.endswith(BARE), "missing": missing}


def _plain(name: str) -> dict[str, object]:
    from rlctl.agents import catalogue

    entry = catalogue.TABLE[name]
    return {
        "name": name,
        "law": entry.law,
        "source": entry.source,
        "shielded": entry.manager.shielded,
        "weight": entry.manager.weight,
        "needs": list(entry.manager.needs),
        "options": {key: _json(value) for key, value in catalogue.options(name).items()},
    }


def _json(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
