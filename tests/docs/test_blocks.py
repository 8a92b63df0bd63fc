"""What a reader pastes does what the page says, and everything that cannot be tried here says why."""

import os
import re
import select

import pytest

pytest.importorskip("myst_parser", reason="the documentation's tools are missing: pip install 'rlctl[docs]'")

from rlctl_docs.blocks import ROOT, BlockError, Use, blocks_of, pages
from rlctl_docs.reference import commands
from rlctl_docs.running import count, try_page

PARSERS = dict(commands())
GLOBAL = {"--help", "--version", "--verbose"}

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
RUN = {name: page for name, page in PAGES.items() if count([page])[Use.RUN]}
SLOW = {"docs/roles/research.md", "docs/roles/training.md", "docs/howto/calibrate-and-train.md"}
"""They train and compare policies."""
SLOW |= {f"docs/howto/add-a-{what}.md" for what in ("guard", "manager", "scenario", "sensor")}
SLOW |= {"docs/measured/simulator.md"}


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, page in RUN.items()]
)
def test_every_block_of_the_page_works(page):
    try:
        try_page(page)
    except BlockError as error:
        pytest.fail(str(error), pytrace=False)


def test_every_block_that_is_not_run_is_valid():
    for page in PAGES.values():
        if page not in RUN.values():
            try_page(page)


def called(text):
    """The rlctl commands in a text, each with the options that it is given."""
    for line in text.replace("\\\n", " ").splitlines():
        for words in re.findall(r"(?:^|[|;&(`$]|\bsudo|\btime|\bexec)\s*(rlctl [a-z][^`|;&#<>()]*)", line):
            own = words.partition(" -- ")[0].split()  # behind it stands somebody else's command
            command = next((" ".join(own[:end]) for end in (3, 2) if " ".join(own[:end]) in PARSERS), " ".join(own[:2]))
            yield command, {word.partition("=")[0].rstrip(".,:") for word in own if word.startswith("--")}


def test_every_command_and_option_on_a_page_exists():
    """Also of blocks that are not run here."""
    for name, page in PAGES.items():
        code = [block.text for block in blocks_of(page) if block.language in ("bash", "console")]
        parts = [*code, *re.findall(r"`(rlctl [^`]*)`", page.read_text())]
        for command, options in (one for part in parts for one in called(part)):
            assert command in PARSERS, f"{name}: {command}"
            unknown = options - PARSERS[command]._option_string_actions.keys() - GLOBAL
            assert not unknown, f"{name}: {command} has no {unknown}"


def written(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def test_blocks_of_a_page_share_folder_and_variables(tmp_path):
    try_page(
        written(
            tmp_path,
            "```bash\nname=kept; echo 1 >file\n```\n"
            "```bash\ntest $name = kept\ntest $(cat file) = 1\n```\n"
            "```python\nfrom pathlib import Path\nassert Path('file').read_text() == '1\\n'\n```\n"
            '```python {file="own/code.py"}\nANSWER = 42\n```\n'
            "```python\nfrom own.code import ANSWER\nassert ANSWER == 42\n```\n",
        )
    )


def test_failed_block_is_told_with_its_line(tmp_path):
    page = written(tmp_path, "# Page\n\n```bash\ntrue\n```\n\n```bash\necho out of order\nfalse\necho never\n```\n")
    with pytest.raises(BlockError, match=r"page.md:7: exit code 1\n    out of order$"):
        try_page(page)


def test_what_a_page_leaves_running_ends_with_it(tmp_path):
    try_page(written(tmp_path, f"```bash\nsleep 600 & echo $! >{tmp_path}/pid\n```\n"))
    try:
        ended = os.pidfd_open(int((tmp_path / "pid").read_text()))
    except ProcessLookupError:
        return
    assert select.select([ended], [], [], 10.0)[0]
    os.close(ended)


@pytest.mark.parametrize(
    ("fence", "told"),
    [
        ("```\nx\n```", "says its language"),
        ("    indented\n", "says its language"),
        ("```bash {requires=root}\n```", "is no option"),
        ('```bash {reqires="root"}\n```', "no option reqires"),
        ('```bash {requires="patience"}\n```', "has no patience"),
        ("```yaml\na: 1\n```", "names its schema"),
    ],
)
def test_fence_that_says_nothing_or_nonsense_is_refused(tmp_path, fence, told):
    with pytest.raises(BlockError, match=f"page.md:1: .*{told}"):
        list(blocks_of(written(tmp_path, fence)))


@pytest.mark.parametrize(
    ("schema", "text", "told"),
    [
        ("serve", "tick_secnds: 1", "page.md:2: unknown key 'tick_secnds'; did you mean 'tick_seconds'"),
        ("safety", "ceiling_ratio: 2", "page.md:2: ceiling_ratio is 2"),
        ("nonsense", "a: 1", "no schema 'nonsense'"),
        ("yaml", "a: [1", "page.md:1: "),
    ],
)
def test_wrong_configuration_is_told_with_line_of_page(tmp_path, schema, text, told):
    with pytest.raises(BlockError) as failed:
        try_page(written(tmp_path, f'```yaml {{check="{schema}"}}\n{text}\n```\n'))
    assert told in str(failed.value)
