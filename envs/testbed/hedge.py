"""Temporary."""
from __future__ import annotations
import contextlib, os, random, re, signal, socket, subprocess, time
from dataclasses import dataclass
from pathlib import Path

NGINX = """daemon off; worker_processes 1; pid {dir}/pid; error_log stderr; {user}
events {{}}
http {{
  access_log off; keepalive_requests 100000000; gzip on; gzip_comp_level 6; default_type text/plain; gzip_types *;
  client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d;
  scgi_temp_path {dir}/e;
  server {{ listen unix:{dir}/socket; root {dir}; }}
}}
"""
def launch(command, group, log):
    p = subprocess.Popen(["/bin/sh","-c",'read _; exec "$@"',"sh",*command], stdin=subprocess.PIPE, stdout=open(log,"wb"), stderr=subprocess.STDOUT, start_new_session=True)
    group.attach(p.pid)
    os.sched_setaffinity(p.pid, range(os.cpu_count()))
    p.stdin.write(b"\n"); p.stdin.close()
    return p
def start_lc(kind, folder, group):
    if kind == "nginx":
        words = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=2 + i % 9)) for i in range(2000)]
        zipf = [1 / rank for rank in range(1, 2001)]
        (folder / "text").write_text(" ".join(random.Random(1).choices(words, zipf, k=17500))[:35000])
        (folder / "conf").write_text(NGINX.format(dir=folder, user="user root;"))
        cmd = ["/usr/sbin/nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "conf")]
    else:
        cmd = ["memcached", "-t", "1", "-s", str(folder / "socket"), "-u", "root", "-c", "512"]
    p = launch(cmd, group, folder/"lc.log")
    for _ in range(500):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(folder/"socket")); break
        time.sleep(.01)
    return p
@dataclass
class Work:
    bogo_ops: float
    seconds: float
class StressNg:
    def __init__(self, kind, workers, group, folder):
        self.yaml=folder/"be.yaml"; self.yaml.unlink(missing_ok=True)
        args={"cpu":["--cpu",str(workers),"--cpu-method","matrixprod"],"memory":["--stream",str(workers)]}[kind]
        self.begun=time.monotonic()
        self.p=launch(["stress-ng",*args,"--metrics-brief","--yaml",str(self.yaml),"--temp-path",str(folder),"--timeout","0"],group,folder/"be.log")
    def stop(self):
        seconds=time.monotonic()-self.begun
        os.kill(self.p.pid,signal.SIGINT)
        self.p.wait(10)
        ops=sum(float(x) for x in re.findall(r"bogo-ops: (\d+)", self.yaml.read_text()))
        return Work(ops,seconds)
