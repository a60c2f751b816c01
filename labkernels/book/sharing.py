"""How the book is shared and cited: its edition, BibTeX, and what a link to a page shows."""

import html
import re
import tomllib
from pathlib import Path

import vl_convert as vlc
import yaml
from docutils import nodes
from sphinx.application import Sphinx

from labkernels.book.pictures import PICTURES
from labkernels.charts.grammar import HUES
from labkernels.paths import ROOT
from labkernels.store import RUNS, Store

_DESCRIPTION_CHARACTERS = 200
_PREVIEW = "preview.png"


def citation() -> dict:
    """What `CITATION.cff` says."""
    return yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))


def repository() -> str:
    """Address of the public repository: `[project.urls] Repository` of pyproject.toml; empty where none is given."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    return project.get("urls", {}).get("Repository", "")


def newest() -> str:
    """Day of the newest stored run, as `2026-12-01`."""
    return str(Store().read(RUNS)["started_utc"].max())[:10]


def edition() -> str:
    """Version and state of the data: `0.1.0, measurements up to 2026-12-01`."""
    return f"{citation()['version']}, measurements up to {newest()}"


def bibtex() -> str:
    """The book as a BibTeX entry, from `CITATION.cff`."""
    cited = citation()
    fields = {
        "title": f"{{{cited['title']}}}",
        "author": f"{{{' and '.join(one['name'] for one in cited['authors'])}}}",
        "year": str(cited["date-released"])[:4],
        "note": f"Edition {edition()}",
    }
    if address := repository():
        fields["url"] = address
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@misc{{which_load,\n{lines}}}"


def description(doctree: nodes.document | None) -> str:
    """The first sentences of a page, for those who see only a link to it."""
    paragraphs = doctree.findall(nodes.paragraph) if doctree else ()
    text = next((" ".join(one.astext().split()) for one in paragraphs if len(one.astext()) > 60), "")
    return (
        text
        if len(text) <= _DESCRIPTION_CHARACTERS
        else f"{text[:_DESCRIPTION_CHARACTERS].rsplit(' ', 1)[0]} …"
    )


def _configure(_app: Sphinx, config: object) -> None:
    options = config.html_theme_options
    options["extra_footer"] = f"Edition {edition()}; see <em>How to cite</em>."
    if address := repository():
        options |= {"repository_url": address, "use_repository_button": True, "use_issues_button": True}


def _describe(app: Sphinx, page: str, _template: str, context: dict, doctree: nodes.document | None) -> None:
    text, title = description(doctree), re.sub("<.*?>", "", context.get("title", ""))
    depth = "../" * page.count("/")
    image = f"{app.config.html_baseurl or depth}_static/{_PREVIEW}"
    tags = {"og:title": title, "og:type": "article", "og:description": text, "og:image": image}
    quoted = {name: html.escape(value, quote=True) for name, value in tags.items()}
    context["metatags"] = context.get("metatags", "") + "".join(
        [f'<meta name="description" content="{quoted["og:description"]}"/>']
        + [f'<meta property="{name}" content="{value}"/>' for name, value in quoted.items() if value]
    )


def _write_preview(app: Sphinx) -> None:
    """The picture of the memory path as PNG: what a link shows."""
    if app.builder.format != "html":
        return
    svg = (PICTURES / "memory.svg").read_text("utf8").replace("currentColor", "#111111")
    svg = re.sub(r"var\(--(\w+)\)", lambda match: HUES[match[1]], svg).replace("context-stroke", "#111111")
    svg = svg.replace("<defs>", '<rect width="520" height="610" fill="#ffffff"/><defs>', 1)
    target = Path(app.outdir, "_static", _PREVIEW)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(vlc.svg_to_png(svg, scale=2))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register footer, repository button, descriptions and the preview picture."""
    app.connect("config-inited", _configure)
    app.connect("html-page-context", _describe)
    app.connect("builder-inited", _write_preview)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
