"""Formulas as MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def inline(page: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a sentence."""
    page.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(page: HTML5Translator, node: nodes.math_block) -> None:
    """Write formulas, each on a line of its own that a narrow screen scrolls."""
    for formula in node.astext().split("\n\n"):
        page.body.append(f'<div class="formula">{convert(formula, display="block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer that conf.py names."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
