"""New rows of the head against plain logistic regression, in double precision."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.worker.editing.moving import CALIBRATION, TRAIN, trained_net
from tests.worker.editing.rows import edited, random_rows
from worker.cbm.arithmetic import Twin
from worker.cbm.concept_predictor import with_head_rows
from worker.cbm.label_predictor import LabelPredictor
from worker.editing.edited_data import UNKNOWN
from worker.editing.growth import grown, grown_label_predictor, logistic_rows

pytestmark = pytest.mark.usefixtures("double")


def test_old_rows_stay_and_new_ones_know_their_concept() -> None:
    model = with_head_rows(trained_net(), [0, 1, 2])
    data = edited(TRAIN, new=(3,))
    larger = grown(model, data.new, data.after, CALIBRATION)
    assert torch.equal(larger.head.weight[:3], model.head.weight)
    assert torch.equal(larger.head.bias[:3], model.head.bias)
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(larger.backbone.state_dict()[name], value)
    with torch.no_grad():
        found, labels = larger(CALIBRATION.images)[:, 3], CALIBRATION.concepts[:, 3].double()
    # Better than the best constant, for rows that nothing was fitted to.
    share = labels.mean().expand_as(labels)
    assert binary_cross_entropy_with_logits(found, labels) < binary_cross_entropy_with_logits(share.logit(), labels)


def test_rows_are_the_regression_with_the_l2_that_serves_held_out_rows_best() -> None:
    """Separable labels with much noise of no use: the weakest L2 is not the best; and the gradient vanishes there."""
    generator = torch.Generator().manual_seed(0)
    x, held = (torch.randn(n, 6, generator=generator) for n in (60, 200))
    labels = [(f[:, :1] + 0.8 * torch.randn(len(f), 1, generator=generator) > 0).long() for f in (x, held)]
    labels[0][:5] = UNKNOWN
    (weights,) = logistic_rows(x, labels[0], held, labels[1], iterations=30)
    scale, known = x.square().mean(0).sqrt(), labels[0][:, 0] >= 0
    p = torch.sigmoid(x[known] @ weights)
    gradient = x[known].T @ (p - labels[0][known, 0].double()) / int(known.sum()) / scale
    # ∇ + λ w = 0 in scaled features, for one λ of the path: the iteration ends at a hundredth of the weights' size.
    strength = float(-(gradient @ (weights * scale)) / (weights * scale).square().sum())
    assert 1e-4 < strength < 0.11
    assert float((gradient + strength * weights * scale).norm()) < 0.02 * float(gradient.norm()) + 1e-4


def test_features_end_in_a_one_and_give_the_logits() -> None:
    model = trained_net()
    features = Twin(model).features(TRAIN.images)
    weights = torch.cat([model.head.weight, model.head.bias[:, None]], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(features @ weights.T, model(TRAIN.images), rtol=0, atol=1e-12)


def test_new_concepts_are_the_last_columns() -> None:
    model = with_head_rows(trained_net(), [0, 1, 2])
    with pytest.raises(ValueError, match="last columns"):
        grown(model, (2,), TRAIN, CALIBRATION)


def test_concepts_without_held_out_labels_are_fitted_all_the_same() -> None:
    rows, silent = random_rows(30, unknown=0.0), random_rows(10, seed=3, unknown=1.0)
    model = with_head_rows(trained_net(), [0, 1, 2])
    assert bool(torch.isfinite(grown(model, (3,), rows, silent).head.weight).all())


def test_the_label_predictor_gains_columns_that_say_nothing_yet() -> None:
    before = LabelPredictor(torch.rand(3, 2), torch.rand(3))
    after = grown_label_predictor(before, (2, 3))
    p = torch.rand(5, 4)
    torch.testing.assert_close(after.logits(p), before.logits(p[:, :2]))
