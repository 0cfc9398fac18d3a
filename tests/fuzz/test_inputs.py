"""Whatever happens to a file, the command names the guilty, nobody, or what is wrong with the file; nobody else."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.damages import DAMAGES, Damage
from tests.fuzz.judging import try_damage, try_files
from tests.fuzz.subjects import Subject, list_others, list_subjects

PAIRS = [(one, damage) for one in (*list_subjects(), *list_others()) for damage in DAMAGES if damage.fits(one.files)]

quick = settings(max_examples=90, derandomize=True, deadline=None, database=None, phases=[Phase.generate])


def name(subject: Subject) -> str:
    return f"{subject.kind}, {subject.name}"


@pytest.mark.parametrize("subject", list_subjects(), ids=name)
def test_every_input_names_its_culprit_while_it_is_whole(subject: Subject) -> None:
    outcome = try_files(subject, subject.files, "loss")
    assert outcome.kind == "same culprit", outcome


@pytest.mark.parametrize("subject", list_others(), ids=name)
def test_every_other_input_is_answered_while_it_is_whole(subject: Subject) -> None:
    outcome = try_files(subject, subject.files, "loss")
    assert outcome.kind == "answered", outcome


@quick
@given(st.sampled_from(PAIRS), st.integers(0, 2**32))
def test_no_damage_breaks_the_command_and_no_loss_accuses_another(pair: tuple[Subject, Damage], seed: int) -> None:
    outcome = try_damage(*pair, seed)
    assert outcome.is_good, (name(pair[0]), pair[1].name, seed, outcome)
