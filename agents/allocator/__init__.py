"""Who of BE gets how much: BarbequeRTRM's order-and-select heuristic over applications, working modes and clusters."""

from rlctl.agents.allocator.allocate import allocate
from rlctl.agents.allocator.contributions import Weights
from rlctl.agents.allocator.stretch import stretch_placements

__all__ = ["Weights", "allocate", "stretch_placements"]
