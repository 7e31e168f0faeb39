"""What the protocol does to a data set before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from papers.loading import PaperData
from papers.protocols import concepts_at
from papers.states import LEVELS, NOISY_LEVELS, Draws, Edit, request_of

from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN

N, K, CLASSES = 100, 8, 5


def rows(n: int, first_id: int) -> LabelledImages:
    generator = torch.Generator().manual_seed(first_id)
    concepts = torch.randint(2, (n, K), generator=generator)
    concepts[::10, 0] = UNKNOWN
    return LabelledImages(
        torch.zeros(n, 3, 4, 4), concepts, torch.arange(n) % CLASSES, torch.arange(first_id, first_id + n)
    )


DATA = PaperData(
    "toy",
    tuple(f"concept {j}" for j in range(K)),
    tuple(f"class {c}" for c in range(CLASSES)),
    rows(N, 0),
    rows(20, 1000),
    rows(30, 2000),
)


def test_a_label_edit_sets_one_known_label_right_in_so_many_rows() -> None:
    edit = Draws(DATA, 0).edit("concept_label", 0.10, 1)
    wrong = edit.before.rows.concepts != DATA.train.concepts
    assert wrong.sum(dim=1).tolist().count(1) == 10
    assert int(wrong.sum()) == 10
    assert not bool((wrong & (DATA.train.concepts == UNKNOWN)).any())
    data = request_of(edit, DATA.calibration).data
    assert len(data.fixed) == 10
    assert not len(data.removed)
    assert not len(data.added)


def test_a_concept_edit_drops_concepts_and_masks_them_in_the_frame() -> None:
    edit = Draws(DATA, 0).edit("concept", 0.03, 3)
    request = request_of(edit, DATA.calibration)
    assert len(request.data.dropped) == 3
    assert request.kept == list(edit.after.columns)
    dropped = list(request.data.dropped)
    for masked in (request.data.after.concepts, request.calibration.concepts):
        assert bool((masked[:, dropped] == UNKNOWN).all())
    assert bool((DATA.calibration.concepts[:, dropped] != UNKNOWN).any()), "the data set's own labels are as they were"
    torch.testing.assert_close(request.goal.concepts, DATA.train.concepts[:, request.kept])


def test_removal_and_addition_are_each_other_backwards() -> None:
    removal, addition = (Draws(DATA, 3).edit(level, 0.10, 1) for level in ("removal", "addition"))
    gone = request_of(removal, DATA.calibration).data.removed
    data = request_of(addition, DATA.calibration).data
    assert len(gone) == 10
    torch.testing.assert_close(DATA.train.sample_ids[gone], data.after.sample_ids[data.added])
    assert removal.after.name == addition.before.name, "so that one training serves both"


def test_no_class_is_emptied() -> None:
    lonely = replace(DATA.train, classes=torch.tensor([0] * (N - 4) + [1, 2, 3, 4]))
    left = Draws(replace(DATA, train=lonely), 0).edit("removal", 0.99, 1).after.rows.classes
    assert set(left.tolist()) == set(range(CLASSES))


def test_other_seeds_draw_other_rows_and_larger_shares_contain_the_smaller() -> None:
    first, second = (set(Draws(DATA, seed).leaving(10).tolist()) for seed in (0, 1))
    assert first != second
    assert first < set(Draws(DATA, 0).leaving(30).tolist())


@pytest.mark.parametrize("level", NOISY_LEVELS)
@pytest.mark.parametrize("rounds", [1, 4])
def test_noise_is_gone_after_the_last_round(level: str, rounds: int) -> None:
    states = Draws(DATA, 0).noisy(level, 0.5, rounds)
    assert len(states) == rounds + 1
    assert len({state.name for state in states}) == len(states)
    left = []
    for state in states:
        known = DATA.train.take(state.rows.sample_ids)  # ids of the toy are positions
        columns = list(state.columns)
        wrong_labels = (state.rows.concepts != known.concepts)[:, columns].sum()
        left.append(int(wrong_labels) + int((state.rows.classes != known.classes).sum()))
    assert left == sorted(left, reverse=True)
    assert left[0] > 0
    assert left[-1] == 0
    if level == "concept_label":
        assert left[0] == round(0.5 * int((DATA.train.concepts != UNKNOWN).sum()))
    for before, after in pairwise(states):
        data = request_of(Edit(level, before, after), DATA.calibration).data
        touched = {"concept_label": len(data.fixed), "concept": len(data.dropped), "removal": len(data.removed)}
        assert {name for name, count in touched.items() if count} == {level}


def test_every_level_has_an_edit_between_different_states() -> None:
    for level in LEVELS:
        edit = Draws(DATA, 0).edit(level, 0.03, 1)
        assert edit.before.name != edit.after.name


def test_ratios_stand_for_the_papers_numbers_of_concepts() -> None:
    assert [concepts_at(percent / 100, 112) for percent in range(1, 11)] == list(range(2, 21, 2))
    assert concepts_at(0.10, 10) == 2
    assert concepts_at(0.01, 7) == 1
    assert concepts_at(0.90, 6) == 3
