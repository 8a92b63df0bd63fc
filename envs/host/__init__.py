"""The live host: cgroup drivers, sensors and the journal. The only place that opens /sys and /proc."""
