import pytest

from tests.golden.update import FOLDER, make_pages

PAGES = make_pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_was_last_approved(name: str) -> None:
    approved = (FOLDER / name).read_text("utf-8")
    assert PAGES[name] == approved, "if the change is meant: python -m tests.golden.update"
