"""The loss attack: known areas, ties, and what turns it round."""

import numpy as np
import pytest

from worker.evidence.membership import loss_attack_auc


@pytest.mark.parametrize(
    ("members", "others", "expected"),
    [
        ([0.1, 0.2], [0.3, 0.4], 1.0),
        ([0.3, 0.4], [0.1, 0.2], 0.0),
        ([0.1, 0.4], [0.2, 0.3], 0.5),
        ([0.1, 0.3], [0.2, 0.4], 0.75),
        ([0.5, 0.5], [0.5, 0.5, 0.5], 0.5),
        ([0.5], [0.5, 0.9], 0.75),
        ([0.0], [np.finfo(np.float64).max], 1.0),
    ],
    ids=["always right", "always wrong", "either way", "three of four pairs", "all tied", "a tie is half", "no bounds"],
)
def test_area_is_the_share_of_pairs_told_right(members: list[float], others: list[float], expected: float) -> None:
    assert loss_attack_auc(np.array(members), np.array(others)) == pytest.approx(expected, abs=1e-15)


def pairs(members: np.ndarray, others: np.ndarray) -> float:
    """By the definition: the probability that a member's loss is lower, ties counting half."""
    lower, tied = members[:, None] < others[None], members[:, None] == others[None]
    return float((lower + 0.5 * tied).mean())


def losses(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Float32 losses with many ties."""
    random = np.random.default_rng(seed)
    return (
        random.gamma(1.0, 1.0, 37).round(1).astype(np.float32),
        random.gamma(1.5, 1.0, 53).round(1).astype(np.float32),
    )


@pytest.mark.parametrize("seed", range(5))
def test_area_is_that_of_the_definition(seed: int) -> None:
    members, others = losses(seed)
    assert loss_attack_auc(members, others) == pytest.approx(pairs(members, others), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_sides_exchanged_turn_the_area_round(seed: int) -> None:
    members, others = losses(seed)
    assert loss_attack_auc(members, others) + loss_attack_auc(others, members) == pytest.approx(1.0, abs=1e-12)


def test_only_the_order_of_losses_matters() -> None:
    members, others = (side.astype(np.float64) for side in losses(0))
    assert loss_attack_auc(members, others) == pytest.approx(
        loss_attack_auc(np.expm1(members), np.expm1(others)), abs=1e-12
    )


@pytest.mark.parametrize(("members", "others"), [([], [1.0]), ([1.0], [])])
def test_an_empty_side_is_refused(members: list[float], others: list[float]) -> None:
    with pytest.raises(ValueError, match="rows on both sides"):
        loss_attack_auc(np.array(members), np.array(others))
