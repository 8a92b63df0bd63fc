"""What stands in for perf where a host has none: it answers as `perf stat -j -I MS --for-each-cgroup` does."""

PERF = r"""
import os, sys, time

words = dict(zip(sys.argv, sys.argv[1:]))
log, seconds = int(words["--log-fd"]), float(words["-I"]) / 1e3
names, events = words["--for-each-cgroup"].split(","), words["-e"].replace("{", "").replace("}", "").split(",")
begun = time.monotonic()
while True:
    time.sleep(seconds)
    stamp = time.monotonic() - begun
    for name in names:
        for event in events:
            os.write(log, (
                '{"interval" : %.9f, "counter-value" : "1000.000000", "unit" : "", "cgroup" : "%s", '
                '"event" : "%s", "event-runtime" : 1000, "pcnt-running" : 100.00}\n' % (stamp, name, event)
            ).encode())
"""
