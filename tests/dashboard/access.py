"""What of a page cannot be read without eyes, mouse or good light: what axe-core finds, and what it does not see."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_UNFOLD = """() => {
  for (const part of document.querySelectorAll("details:not([open])")) {
    part.open = true;
    part.dataset.unfolded = "";
  }
}"""
_FOLD = """() => {
  for (const part of document.querySelectorAll("details[data-unfolded]")) {
    part.open = false;
    delete part.dataset.unfolded;
  }
}"""

_HINT = ".plotly-notifier"
"""What plotly puts over all for three seconds after the first zoom, outside the page: how to zoom back."""

_CHECK = """() => {
  const wrong = [];
  const first = document.querySelectorAll("h1").length;
  if (first !== 1) wrong.push("headings of first level: " + first);
  if (document.documentElement.lang !== "en") wrong.push("not in English");
  for (const figure of document.querySelectorAll(".figure"))
    if (!figure.getAttribute("aria-label") || !figure.closest("section").querySelector("[data-table]"))
      wrong.push("figure without name or table");
  for (const head of document.querySelectorAll("table th"))
    if (head.scope !== "col") wrong.push("heading of a table without scope: " + head.outerHTML);
  const ids = [...document.querySelectorAll("[id]")].map((part) => part.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) wrong.push("id twice: " + id);
  for (const part of document.querySelectorAll("[aria-labelledby]"))
    if (!document.getElementById(part.getAttribute("aria-labelledby"))) wrong.push("label that is not there");
  return wrong;
}"""
"""Complaints about what axe passes or leaves to the reader."""


def list_barriers(page: Page) -> list[str]:
    """List what bars somebody from a page, by all rules of axe-core and a few of ours.

    All is unfolded for it, and folded again: axe passes over what is not shown.
    """
    page.evaluate(_UNFOLD)
    found = [
        f"{rule['id']}: {part['html'][:160]} {part['failureSummary']}"
        for rule in Axe().run(page, {"exclude": [[_HINT]]}).response["violations"]
        for part in rule["nodes"]
    ]
    wrong: list[str] = page.evaluate(_CHECK)
    page.evaluate(_FOLD)
    return [*found, *wrong]
