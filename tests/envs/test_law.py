"""A law in machine code is the law: same numbers, same rows; and without Numba it runs as it stands."""

import subprocess
import sys

import numpy as np
import pytest

from rlctl.envs.law import compiled, law
from rlctl.envs.rows import ALLOCATION

CPUS = 2.0


@law
def half_of(cpus):
    return CPUS * cpus / 4.0


@law
def halve(rows):
    for place in range(len(rows)):
        row = rows[place]
        row["quota_cpus"] = half_of(row["quota_cpus"])
        row["frozen"] = row["cpuset_cpus"] > 1


def test_both_forms_write_the_same_rows():
    pytest.importorskip("numba")
    one, other = (np.zeros(3, ALLOCATION) for _ in range(2))
    for rows in (one, other):
        rows["quota_cpus"], rows["cpuset_cpus"] = [1.0, np.inf, np.nan], [1, 2, 3]
    halve(one)
    compiled(halve)(other)
    for name in ALLOCATION.names:
        np.testing.assert_array_equal(one[name], other[name])
    assert one["frozen"].tolist() == [False, True, True]


def test_interpreted_where_asked():
    script = "import os; from rlctl.envs.law import *; os.environ[INTERPRETED] = '1'; f = law(lambda x: x); "
    subprocess.run([sys.executable, "-c", script + "assert compiled(f) is f"], check=True)
