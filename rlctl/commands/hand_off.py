"""`rlctl hand-off`: one pod of BE that starves here, labelled and evicted by way of the Kubernetes API."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from rlctl.commands.arguments import listed, positive_int
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import ConfigError, HostError

DESCRIPTION = """Label the newest pod of BE on this node with rlctl.io/starved=true and ask the Kubernetes API to evict
it, so that a scheduler starts it elsewhere. For be.starved.command of the service, within its pod. Only pods with the
label rlctl.io/be=true are touched, and no more within an hour than the budget has. With RLCTL_FED=1 in the environment,
as the service says it when BE is fed again, take the label off instead."""

IS_BE = "rlctl.io/be=true"
"""The label by which somebody says that a pod may be moved."""

EXAMPLES = """examples:
  rlctl hand-off --config /etc/rlctl/serve.yaml --namespace batch --dry-run
  rlctl hand-off --config /etc/rlctl/serve.yaml --namespace batch
  rlctl hand-off --config /etc/rlctl/serve.yaml --namespace batch,ml --per-hour 4 --label-only --json

--dry-run has the API server try all of it and keep nothing: permissions and disruption budgets are tried as well.
exit code 0 also where the budget is spent, 1: no pod may be moved, 75: the API does not answer, or not now (a
PodDisruptionBudget), 77: the service account may not
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="serve's configuration: BE's groups")
    parser.add_argument(
        "--namespace", type=listed, metavar="NAME[,NAME]", help="of BE's pods; default: the service account's own"
    )
    parser.add_argument(
        "--selector", default=IS_BE, metavar="LABELS", help=f"of pods that may be moved; default: {IS_BE}"
    )
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), metavar="NAME", help="default: $NODE_NAME")
    parser.add_argument("--per-hour", type=positive_int, default=1, metavar="N", help="most hand-offs an hour (1)")
    parser.add_argument("--label-only", action="store_true", help="do not evict: something else goes by the label")
    parser.add_argument("--dry-run", action="store_true", help="have the API server try it and keep nothing")
    parser.add_argument("--json", action="store_true", help="what came of it as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command; what went wrong is one line with the way out, see `rlctl.handoff`."""
    from rlctl.config.serve import load_config  # here, for --help needs none of it
    from rlctl.handoff.api import ACCOUNT, Api, secret
    from rlctl.handoff.budget import Budget
    from rlctl.handoff.hand_off import Asked, be_pods, hand_off, keep

    if not args.selector.strip():
        raise ConfigError("--selector is empty: every pod of the node might be moved; name a label")
    if not args.node:
        raise ConfigError("NODE_NAME is not set: take it from the downward API (spec.nodeName), or give --node")
    config, api, fed = load_config(args.config), Api.in_cluster(), os.environ.get("RLCTL_FED") == "1"
    try:
        uids = be_pods(config)
    except HostError:
        if not fed:
            raise
        uids = frozenset()  # the last of BE has gone, and no label of it is left
    asked = Asked(
        uids=uids, node=args.node, namespaces=args.namespace or (secret(ACCOUNT / "namespace"),),
        selector=args.selector, label_only=args.label_only, dry_run=args.dry_run,
        because=os.environ.get("RLCTL_REASON", ""),
    )  # fmt: skip
    budget = Budget(config.state_directory, args.per_hour)
    do = keep if fed else hand_off
    if args.dry_run:
        outcome = do(api, budget, asked)
    else:
        with budget.alone():
            outcome = do(api, budget, asked)
    if args.json:
        print_json(asdict(outcome))
    else:
        print(outcome.text)
    return 0
