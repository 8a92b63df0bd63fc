"""The control loop: the tick, what becomes of one that fails, and where each tick is recorded."""
