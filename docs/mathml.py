"""Formulas as MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

from typing import Any, Literal

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def inline(page: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a sentence."""
    page.body.append(_drawn(node.astext(), node, "inline"))
    raise nodes.SkipNode


def block(page: HTML5Translator, node: nodes.math_block) -> None:
    """Write formulas, each on a line of its own that a narrow screen scrolls."""
    # Sphinx parts formulas by an empty line, and may leave one at the end.
    for formula in filter(None, map(str.strip, node.astext().split("\n\n"))):
        page.body.append(f'<div class="formula">{_drawn(formula, node, "block")}</div>\n')
    raise nodes.SkipNode


def _drawn(formula: str, node: nodes.Node, display: Literal["inline", "block"]) -> str:
    try:
        return convert(formula, display=display)
    except Exception as error:  # the library has no class of error for all that it cannot read
        logger.warning("No formula: %s (%s)", formula, type(error).__name__, location=node)
        return ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer that conf.py names."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
