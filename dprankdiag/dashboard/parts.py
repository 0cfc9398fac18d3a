"""What of a page changes from tick to tick, so that only that is sent and all else stays as the reader left it.

Replacing a whole page would close what was unfolded, lose the focus and forget what a figure was zoomed to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dash.development.base_component import Component

PROPERTY = {"figure": "figure", "table": "data-table", "words": "children"}
"""Kind of a part → the property that changes."""

Id = dict[str, str]


def name_part(kind: str, key: str) -> Id:
    """Make the id of a part of a page."""
    assert kind in PROPERTY
    return {"type": kind, "key": key}


@dataclass(frozen=True, slots=True)
class Parts:
    """A page taken apart.

    Attributes:
        frame: digest of all that does not change.
        contents: of each part, by the text of its id.
        digests: of the contents.
    """

    frame: str
    contents: dict[str, Any]
    digests: dict[str, str]

    def list_changes(self, shown: dict[str, str]) -> Iterator[tuple[Id, dict[str, Any]]]:
        """List the ids and new properties of parts that are not on the screen as they are.

        Args:
            shown: digests of what is on the screen.
        """
        for text, content in self.contents.items():
            if shown.get(text) != self.digests[text]:
                part: Id = json.loads(text)
                yield part, {PROPERTY[part["type"]]: content}


def take_apart(elements: Sequence[Any]) -> Parts:
    """Take a page apart."""
    contents: dict[str, Any] = {}
    frame = [_strip(element, contents) for element in elements]
    digests = {text: _digest(content) for text, content in contents.items()}
    return Parts(_digest(frame), contents, digests)


def _strip(element: Any, contents: dict[str, Any]) -> Any:
    """Write an element without what changes in it, which is put into `contents`."""
    if isinstance(element, (list, tuple)):
        return [_strip(one, contents) for one in element]
    if not isinstance(element, Component):
        return element
    plain = element.to_plotly_json()  # type: ignore[no-untyped-call]
    told = dict(plain["props"])
    part = told.get("id")
    if isinstance(part, dict) and part.get("type") in PROPERTY:
        contents[json.dumps(part, sort_keys=True)] = told.pop(PROPERTY[part["type"]], None)
    if "children" in told:
        told["children"] = _strip(told["children"], contents)
    return [plain["type"], told]


def _digest(content: Any) -> str:
    from plotly.utils import PlotlyJSONEncoder

    text = json.dumps(content, cls=PlotlyJSONEncoder, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
