"""The C header, compiled as strictly as a user may, against the line that the service writes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import rlctl.envs.host.apps as package
from rlctl.envs.applications import Placement, WorkingMode
from rlctl.envs.host.apps.registry import mode_line

HEADER = Path(package.__file__).parent / "rlctl_mode.h"

PROGRAM = """
#include "rlctl_mode.h"
int main(void) {
    rlctl_mode mode;
    char order[32];
    rlctl_mode_open(&mode);
    printf("begin %d\\n", rlctl_mode_threads(3));
    fflush(stdout);
    while (fgets(order, sizeof order, stdin) != NULL) {
        if (rlctl_mode_poll(&mode))
            printf("mode %d threads %d cpus %.3f memory %lld\\n", mode.index, mode.threads, mode.cpus,
                   mode.memory_bytes);
        else
            printf("nothing\\n");
        fflush(stdout);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("c")
    (folder / "client.c").write_text(PROGRAM)
    words = ["gcc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2"]
    subprocess.run([*words, f"-I{HEADER.parent}", "-o", "client", "client.c"], cwd=folder, check=True)
    return folder / "client"


class Client:
    def __init__(self, program, **environment):
        words = {name: value for name, value in os.environ.items() if not name.startswith("RLCTL_")}
        self.process = subprocess.Popen(
            [program], env=words | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.begun = self.process.stdout.readline().strip()

    def ask(self, order):
        self.process.stdin.write(f"{order}\n")
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.communicate()
        assert self.process.returncode == 0


def a_line(threads, cpus=1.5):
    return mode_line(Placement(threads, "all", cpus), WorkingMode(1.0, threads, 1.0, 4096))


def test_it_reads_each_mode_once(program, tmp_path):
    (tmp_path / "mode").write_text(a_line(3))
    client = Client(program, RLCTL_MODE_FILE=str(tmp_path / "mode"), RLCTL_THREADS="4")
    assert client.begun == "begin 4"
    assert client.ask("poll") == "mode 3 threads 3 cpus 1.500 memory 4096"
    assert client.ask("poll") == "nothing"
    (tmp_path / "mode").write_text(a_line(5))
    assert client.ask("poll") == "mode 5 threads 5 cpus 1.500 memory 4096"
    client.end()


def test_outside_rlctl_it_does_no_harm(program):
    client = Client(program)
    assert client.begun == "begin 3"
    assert client.ask("poll") == "nothing"
    client.end()
