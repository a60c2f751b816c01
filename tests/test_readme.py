"""What README quotes is what the stored rows say."""

import re

from labkernels.cli import COMMANDS, main
from labkernels.paths import BOOK

README = (BOOK.parent / "README.md").read_text(encoding="utf8")


def test_readme_quotes_the_headline_figures_of_the_stored_rows(capsys):
    """Of the GPUs that it speaks of: those whose name stands on a line of its own, as `headline` prints it."""
    assert main(["headline"]) == 0
    quoted, gpu = {}, ""
    for line in capsys.readouterr().out.splitlines():
        if line.startswith(" "):
            quoted[gpu].append(line.strip())
        else:
            gpu = line
            quoted[gpu] = []
    spoken_of = set(quoted) & {line.strip() for line in README.splitlines()}
    assert spoken_of
    for line in (line for gpu in spoken_of for line in quoted[gpu]):
        assert line in README, f"README lacks: {line}"


def test_readme_opens_with_the_two_commands():
    assert README.index("make book") < README.index("make test") < README.index("## ")


def test_readme_names_every_command():
    table = README[README.index("| `python -m labkernels …` | does |") : README.index("Each has `--help`")]
    named = {word for row in re.findall(r"^\| (.*?) \|", table, re.M) for word in re.findall(r"`(\w+)", row)}
    assert named - {"python"} == COMMANDS.keys()
