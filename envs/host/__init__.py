"""The live host: cgroup drivers, sensors and the journal. The only place that opens /sys and /proc.

Arguments that mean the same everywhere below have no line of their own: `layout` says where the hierarchies of control
groups are mounted; `knobs` reads and writes their files, and journals what they held before; `kernel` is what lies
beneath, for which tests have a double; `proc` and `sys` are where procfs and sysfs are mounted, for tests a folder;
`clock` and `now_seconds` are monotonic seconds; `slo` is the LC's objective, `limits` the range of allocations.
"""
