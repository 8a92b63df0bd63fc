"""One module per command: `EXAMPLES` ends its help, `add_arguments(parser)` declares its options, `run(args)` runs it.

`run` returns the exit code; `DESCRIPTION` begins the help where the line in `rlctl --help` does not say enough.
"""
