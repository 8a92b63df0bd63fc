"""`rlctl serve` with a manager and a guard of a user: behind the shield, and of no file that others may write."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.agents.served.fallback import FallbackPolicy
from rlctl.cli import main
from rlctl.config.serve import PolicySection
from rlctl.envs.allocation import Limits
from rlctl.envs.errors import PolicyError
from rlctl.safety.profile import load_shield
from rlctl.serve.policy_setup import Configuration, PolicySetup, build_policy, with_fallback
from tests.doubles.clock import Countdown
from tests.doubles.host import FakeHost, run_service

EXAMPLE = Path(__file__).parents[2] / "plugin_example"
TOY = """
from rlctl.agents.managers.manager import Manager

class Toy(Manager):
    share: float = 1.0
    def __init__(self, share: float = 1.0): self.share = share
    def begin(self): return self.limits.minimum
    def decide(self, telemetry): {answer}
"""
POLICY = "policy: {name: frozen}"
ALWAYS = "return self.limits.full, 'all'"


def written(folder: Path, answer: str = ALWAYS) -> str:
    """A file with the class Toy, as a name."""
    (folder / "toy.py").write_text(TOY.format(answer=answer))
    return f"{folder}/toy.py:Toy"


def decider(name: str, **options: object) -> FallbackPolicy:
    """The policy of a service, with frozen behind it."""
    from rlctl.config.sections import FallbackSection

    policy = build_policy(PolicySection(name=name, options=options))
    chain = with_fallback(policy, FallbackSection(name="frozen", answer_milliseconds=1000.0), 4.0)
    assert isinstance(chain, FallbackPolicy)
    return chain


def test_a_manager_decides_behind_the_shield(tmp_path: Path) -> None:
    host = FakeHost(Limits(cpus=2), loads=(0.1,))
    totals = run_service(
        host, PolicySetup(decider(written(tmp_path)), load_shield("responsive")), Countdown(30), tmp_path
    )
    assert totals.overrides > 0, "it asks for all, and BE grows as the shield lets it"
    assert totals.policy_errors == 0


@pytest.mark.parametrize("answer", ["return 1 / 0", "return None, ''", "raise SystemExit(3)", "return 'all', ''"])
def test_one_that_fails_is_left_to_the_fallback(tmp_path: Path, answer: str, caplog: pytest.LogCaptureFixture) -> None:
    chain = decider(written(tmp_path, answer))
    with caplog.at_level(logging.WARNING):
        run_service(
            FakeHost(Limits(cpus=2), loads=(0.1,)),
            PolicySetup(chain, load_shield("responsive")),
            Countdown(9),
            tmp_path,
        )
    assert chain.breaker.demotions == 1, "repeated failures open its breaker"
    assert "frozen decides instead of policy" in caplog.text
    assert "toy.py:Toy" in caplog.text


def test_its_options_are_the_constructors(tmp_path: Path) -> None:
    name = written(tmp_path)
    assert decider(name, share=0.5).policy._policy.share == 0.5
    with pytest.raises(PolicyError, match="Toy has no option 'shares'; did you mean 'share'"):
        decider(name, shares=0.5)


@pytest.mark.parametrize("mode", [0o664, 0o666])
@pytest.mark.parametrize("name", ["{}", "responsive+{}"])
def test_a_file_others_may_write_is_refused(tmp_path: Path, mode: int, name: str) -> None:
    """Whoever can write it would be root."""
    (tmp_path / "toy.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')")
    (tmp_path / "toy.py").chmod(mode)
    named = name.format(f"{tmp_path}/toy.py:Toy")
    with pytest.raises(PolicyError, match=r"others may write .*toy.py .*mode 66.*: chown it to root and chmod go-w"):
        load_shield(named, strict=True) if "+" in named else build_policy(PolicySection(name=named))
    assert not (tmp_path / "touched").exists()


def test_a_folder_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PolicyError, match=r"others may write .*open "):
        build_policy(PolicySection(name=written(tmp_path / "open")))
    if os.geteuid() == 0:
        name = written(tmp_path)
        os.chown(tmp_path / "toy.py", 65534, 0)
        with pytest.raises(PolicyError, match="owner 65534"):
            build_policy(PolicySection(name=name))


def test_a_reload_runs_the_changed_file(tmp_path: Path) -> None:
    name = written(tmp_path)
    before = build_policy(PolicySection(name=name)).digest
    written(tmp_path, "return self.limits.minimum, 'now the minimum'")
    os.utime(tmp_path / "toy.py", ns=(1, 1))
    assert build_policy(PolicySection(name=name)).digest != before


def test_config_check_tells_what_does_not_load(
    tmp_path: Path, serve_yaml: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for text, said in (
        (f"policy: {{name: '{written(tmp_path, '1 +')}'}}", "toy.py:"),
        (f"policy: {{name: frozen}}\nshield: measured+{tmp_path}/toy.py:Toys", "toy.py:"),
        ("policy: {name: example-hlf}", "no manager 'example-hlf'"),
    ):
        assert main(["config", "check", str(serve_yaml(POLICY, text))]) == 78
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
    file = serve_yaml(POLICY, f"policy: {{name: '{written(tmp_path)}'}}")
    assert isinstance(Configuration(file).deciders.policy, FallbackPolicy)


def test_a_package_is_found_by_entry_points(
    tmp_path: Path,
    serve_yaml: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(EXAMPLE)], check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(site))

    def rlctl(*words: str) -> str:
        main(list(words))
        return capsys.readouterr().out

    listed = rlctl("managers")
    assert "example-half" in listed
    assert "[rlctl-example 1.0, rlctl_example:Half]" in listed
    assert "guard     While the LC's threads wait" in listed
    assert "rlctl-example 1.0" in rlctl("doctor")
    for name, promises in (("example-half", 6), ("example-pressure", 3)):
        assert rlctl("managers", "check", name).count("ok  ") == promises
    shield = "responsive+example-pressure"
    run = ["--scenario", "noisy", "--seeds", "2", "--duration", "20", "--jobs", "1", "--shield", shield]
    table = rlctl("bench", *run, "--managers", "example-half,greedy-shield,frozen")
    assert "| example-half " in table
    assert "| greedy-shield " in table
    file = serve_yaml(POLICY, f"policy: {{name: example-half}}\nshield: {shield}")
    (tmp_path / "example-half").mkdir()  # a folder of its name where the command runs is no bundle
    monkeypatch.chdir(tmp_path)
    assert "ok" in rlctl("config", "check", str(file))
    for name in ("fast.so", "__pycache__"):  # root would run what any user puts there
        (found := site / "rlctl_example" / name).mkdir(exist_ok=True)
        found.chmod(0o777)
        assert main(["config", "check", str(file)]) == 78
        assert f"others may write {found} " in capsys.readouterr().err
        found.chmod(0o755)
    entries = next(site.glob("*.dist-info")) / "entry_points.txt"
    entries.write_text("[rlctl.managers]\nexample-half = builtins:dict\n")
    assert "raised TypeError: <class 'dict'> is a built-in class" in rlctl("managers")
