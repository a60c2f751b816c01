"""Sphinx extension: everything a page needs comes with the book, nothing from a network."""

from pathlib import Path

import vl_convert as vlc
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from labkernels.charts.grammar import VL_VERSION


def _write_bundle(app: Sphinx) -> None:
    if app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    static.mkdir(parents=True, exist_ok=True)
    # The bundle's top-level `const _`, `const n`, ... clash with other scripts: keep them in a function.
    bundle = vlc.javascript_bundle(vl_version=VL_VERSION)
    (static / "vega-bundle.js").write_text(f"(()=>{{{bundle}\n}})();\n", encoding="utf8")


def _drop_thebe(
    app: Sphinx, _page: str, _template: str, context: dict, _doctree: nodes.document | None
) -> None:
    # sphinx-thebe 0.3.1 adds its <script> again for every page: a redeclaration error in each console.
    context["script_files"] = [
        script
        for script in context["script_files"]
        if "thebe" not in f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', '')}"
    ]


# Formulas become MathML, which browsers draw themselves: MathJax would come from a CDN and need JavaScript.
def _inline_math(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display_math(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(convert(node.astext(), display="block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register scripts, style, the MathML renderer (`html_math_renderer: mathml`) and the Vega bundle."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_display_math, None))
    app.add_js_file("vega-bundle.js", loading_method="defer")
    app.add_js_file("lab-charts.js", loading_method="defer")
    app.add_js_file("lab-decide.js", loading_method="defer")
    app.add_css_file("lab-charts.css")
    app.connect("builder-inited", _write_bundle)
    app.connect("html-page-context", _drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
