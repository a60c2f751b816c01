"""The whole book as one PDF: its built pages in the order of the contents, printed by headless Chromium.

`python -m labkernels.book.pdf` after `make book`; `make pdf` does both.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from bs4 import BeautifulSoup

from labkernels.errors import NotInstalled
from labkernels.paths import ROOT

HTML, TARGET = ROOT / "_build" / "html", ROOT / "_build" / "which-load.pdf"
_PRINTER = ("chromium", "google-chrome", "chromium-browser")
_STYLE = "article { break-before: page; } article:first-of-type { break-before: auto; } .headerlink { display: none; }"


def pages() -> list[str]:
    """Names of the book's pages, in the order of its contents."""
    return re.findall(r"(?:root|file): book/(\S+)", (ROOT / "_toc.yml").read_text("utf8"))


def whole(names: list[str], built: Path = HTML / "book") -> str:
    """All pages as one, without scripts: static charts, and links from page to page that stay inside."""
    articles = []
    for name in names:
        soup = BeautifulSoup((built / f"{name}.html").read_text("utf8"), "html.parser")
        article = soup.find("article", class_="bd-article")
        for script in article(["script", "noscript"]):
            script.decompose()
        for details in article("details", class_="lab-print"):
            details["open"] = ""
        for section in article(["section", "span", "li"], id=True):
            section["id"] = f"{name}--{section['id']}"
        for link in article("a", href=True):
            page, _, at = link["href"].partition("#")
            page = page.removesuffix(".html") or name
            if page in names:
                link["href"] = f"#{page}--" + ("" if "=" in at else at)  # what fills a form has no anchor
        articles.append(f'<article class="bd-article" id="{name}--">{article.decode_contents()}</article>')
    first = BeautifulSoup((built / f"{names[0]}.html").read_text("utf8"), "html.parser")
    sheets = "".join(str(link) for link in first("link", rel="stylesheet"))
    return (
        f'<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>Which Load?</title>{sheets}<style>{_STYLE}</style></head>"
        f'<body><main class="bd-content">{"".join(articles)}</main></body></html>'
    )


def main() -> None:
    """Write the PDF.

    Raises:
        NotInstalled: there is no Chromium.
    """
    printer = next(filter(None, map(shutil.which, _PRINTER)), None)
    if printer is None:
        raise NotInstalled("no chromium to print with: apt install chromium")
    page = HTML / "book" / "whole.html"
    page.write_text(whole(pages()), "utf8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", "--timeout=120000"]
    subprocess.run(
        [printer, *options, f"--print-to-pdf={TARGET}", page.as_uri()], check=True, capture_output=True
    )
    page.unlink()
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
