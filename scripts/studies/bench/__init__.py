"""What scripts/bench measures: a module a measurement, each with `declare(parser)` and `run(args)`."""
