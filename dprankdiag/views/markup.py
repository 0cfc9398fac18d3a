"""HTML in the making: text becomes safe when it enters, and only what was made here is taken as markup."""

from __future__ import annotations

from html import escape

from dprankdiag.views.printable import make_printable

_VOID = frozenset({"meta", "br", "col"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape_text(text: str) -> Markup:
    """Make text safe in an element or a quoted attribute; markup stays as it is."""
    return text if isinstance(text, Markup) else Markup(escape(make_printable(text), quote=True))


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """Make an element; a trailing underscore of an attribute is dropped, other underscores are dashes.

    Args:
        name: of the element.
        children: text, which is escaped, or markup.
        attributes: None and False leave the attribute out, True gives it no value.
    """
    opening = "".join(_write_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    if name in _VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(*children)}</{name}>")


def _write_attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape_text(str(value))}"'


def join(*parts: str) -> Markup:
    """Put texts and markup one after the other."""
    return Markup("".join(escape_text(part) for part in parts))
