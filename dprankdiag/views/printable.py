"""Make text from foreign files safe to print: what a recording calls itself must not steer the terminal."""

from __future__ import annotations

import unicodedata

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that print nothing, reorder or break a line.

Source: Unicode Standard Annex 44, General_Category values.
"""


def make_printable(text: str, *, keep_lines: bool = False) -> str:
    """Replace control, direction and unpaired characters by visible escapes such as ``\\x1b``.

    Args:
        text: any text.
        keep_lines: leave line feeds in place.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_show(character, keep_lines) for character in text)


def _show(character: str, keep_lines: bool) -> str:
    if character == "\n" and keep_lines:
        return character
    if unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    if character in "\n\r\t":
        return " "
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
