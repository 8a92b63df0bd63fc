"""Who of BE gets how much: BarbequeRTRM's order-and-select heuristic over applications, working modes and clusters."""

from rlctl.agents.allocator.allocate import allocate
from rlctl.agents.allocator.stretch import stretched
from rlctl.agents.allocator.weights import Weights

__all__ = ["Weights", "allocate", "stretched"]
