"""What README quotes is what the stored rows say."""

from labkernels.cli import main
from labkernels.paths import BOOK

README = (BOOK.parent / "README.md").read_text(encoding="utf8")


def test_readme_quotes_the_headline_figures_of_the_stored_rows(capsys):
    assert main(["headline"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert line.strip() in README, f"README lacks: {line.strip()}"


def test_readme_opens_with_the_two_commands():
    assert README.index("make book") < README.index("make test") < README.index("## ")
