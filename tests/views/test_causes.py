from typing import NamedTuple

import pytest

from dprankdiag.views.causes import RemedyEntry, render_list, render_markdown, render_page


class Entry(NamedTuple):
    title: str = "A title"
    says: str = "It says so."
    remedies: tuple[RemedyEntry, ...] = ()


@pytest.mark.parametrize(
    "page",
    [
        "*What you see*\n\nOne rank\nis late.",
        "*What you see*\nOne rank\nis late.",
        "*What you see* One rank\nis late.",
        "**What you see:** One rank\nis late.",
        "*What you see*: One rank is late.",
        "*What you see.* One rank is late.",
    ],
)
def test_a_heading_may_be_written_in_several_ways(page: str) -> None:
    lines = [line for line in render_page("a.b", Entry(), page).splitlines() if line]
    assert lines[2:4] == ["What you see", "   One rank is late."]


def test_items_stay_apart_and_their_lines_are_joined() -> None:
    text = render_page("a.b", Entry(), "*What to do*\n- Do one\n  thing.\n- Do another.")
    assert "   - Do one thing.\n   - Do another.\n" in text


def test_a_star_inside_a_line_is_no_heading() -> None:
    assert "   work = a * b * c" in render_page("a.b", Entry(), "work = a * b * c")


def test_a_list_without_causes_is_a_heading_only() -> None:
    assert render_list({}).startswith("Causes")


class Remedy(NamedTuple):
    key: str = "balance"
    text: str = "Place by requests."
    source: str = ""


def test_a_remedy_is_followed_by_what_to_type_for_it() -> None:
    commands = {"balance": ("SGLang: --load-balance-method total_requests", "nvidia-smi topo -m")}
    entry = Entry(remedies=(Remedy(),))
    page = render_page("a.b", entry, "", commands)
    assert "Place by requests.\n     Try: SGLang: --load-balance-method total_requests\n" in page
    assert "  - SGLang: `--load-balance-method total_requests`\n  - `nvidia-smi topo -m`" in render_markdown(
        "a.b", entry, "", commands
    )


def test_a_remedy_without_a_command_says_none() -> None:
    assert "Try" not in render_page("a.b", Entry(remedies=(Remedy(),)), "", {})
