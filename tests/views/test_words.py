import pytest

from dprankdiag.views import words
from dprankdiag.views.printable import make_printable
from tests import builders


@pytest.mark.parametrize(
    "ranks, expected",
    [((), "-"), ((3,), "3"), ((1, 2), "1, 2"), ((0, 1, 2, 5), "0-2, 5"), ((7, 5, 6, 5), "5-7")],
)
def test_runs_of_ranks_are_joined(ranks: tuple[int, ...], expected: str) -> None:
    assert words.format_ranks(ranks) == expected


def test_a_finding_without_ranks_blames_nobody() -> None:
    assert words.name_ranks(builders.finding(ranks=(), who="all")) == "all ranks"
    assert words.name_ranks(builders.finding(ranks=(), who="rotating")) == "no single rank"


def test_an_engine_is_named_where_it_is_not_the_only_one() -> None:
    assert words.name_ranks(builders.finding(engine="prefill-0", ranks=(0, 1))) == "ranks 0, 1 of prefill-0"


def test_a_window_counts_from_the_first_analysed_event() -> None:
    assert words.format_window(builders.finding().window, -1_000_000_000) == "1.000 to 2.200 s"


def test_onset_period_and_layers_are_part_of_the_pattern() -> None:
    finding = builders.finding(onset_ns=600_000_000, period_ns=2_000_000, layers=(1, 2, 3), when="onset")
    text = words.describe_pattern(finding, 0)
    assert "from one moment on" in text
    assert "began at 0.600 s; every 2.00 ms; layers 1-3" in text


@pytest.mark.parametrize(
    "value, unit, expected",
    [(None, "ns", "-"), (1500, "ns", "1.50 µs"), (2048, "bytes", "2.00 KiB"), (2.5, "ratio", "2.5"), (12, "", "12")],
)
def test_values_are_written_in_their_unit(value: float | None, unit: str, expected: str) -> None:
    assert words.format_value(value, unit) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("plain µ × –", "plain µ × –"),
        ("a\nb\tc", "a b c"),
        ("\x1b[0m", "\\x1b[0m"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eabc", "\\u202eabc"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_hidden_characters_become_visible(text: str, expected: str) -> None:
    assert make_printable(text) == expected


def test_line_feeds_may_be_kept() -> None:
    assert make_printable("a\n\x1bb", keep_lines=True) == "a\n\\x1bb"


@pytest.mark.parametrize(
    "advice, commands",
    [
        ("Spread the load.", []),
        ("Record it: nsys profile -t cuda,nvtx --x=y.", ["nsys profile -t cuda,nvtx --x=y"]),
        ("nsys profile -o t <serve> (node shows kernels)", ["nsys profile -o t <serve>"]),
        ("dprankdiag kernels TRACE shows names; name them with --patterns", ["dprankdiag kernels TRACE", "--patterns"]),
        ("vLLM (--enable-eplb --eplb-config '{\"n\": 1}'), or else", ["--enable-eplb", "--eplb-config '{\"n\": 1}'"]),
        ("dprankdiag dashboard A.dprank BEFORE.dprank opens both", ["dprankdiag dashboard A.dprank BEFORE.dprank"]),
        ("an earlier recording: --baseline FILE.dprank", ["--baseline FILE.dprank"]),
        ("SGLANG_X_Y=1 (SGLang >= 0.5) or A_LONG_ONE=2 B_LONG_ONE=3 <serve>", None),
        ("a low--high range and 2 -- 3", []),
    ],
)
def test_what_can_be_typed_is_told_from_prose(advice: str, commands: list[str] | None) -> None:
    pieces = words.split_commands(advice)
    assert "".join(piece for piece, _ in pieces) == advice
    found = [piece for piece, is_command in pieces if is_command]
    assert found == (["SGLANG_X_Y=1", "A_LONG_ONE=2 B_LONG_ONE=3 <serve>"] if commands is None else commands)


def test_a_small_loss_is_no_fact_where_nothing_can_be_told() -> None:
    lost = builders.lost(total_ns=0, ratio=0.0, by_cause=(), unexplained_ns=0)
    undecided = builders.undecided_diagnosis(lost=lost)
    assert not any("lost" in fact for fact in words.list_facts(undecided))
    assert any("lost" in fact for fact in words.list_facts(builders.even_diagnosis(lost=lost)))
