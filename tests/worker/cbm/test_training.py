"""Training: its loss, its repeatability, its early stop, and what augmentation does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from worker.cbm.concept_predictor import ConceptPredictor
from worker.cbm.label_predictor import LabelPredictor
from worker.cbm.training import _shifted, concept_losses, predict_logits, train_concept_predictor
from worker.cbm.weights import save_weights
from worker.data.tensors import LabelledImages

ARCHITECTURE: dict[str, Any] = {"name": "small_conv", "width": 8, "image_size": 8, "channels": 1}
TRAINING: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "weight_decay": 1e-4,
    "patience": 10,
    "augment": False,
}


def rows(n: int, seed: int) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 1, 8, 8, generator=generator)
    concepts = torch.stack([images[:, 0, :4].mean((1, 2)) > 0, images[:, 0, 4:].mean((1, 2)) > 0], dim=1).long()
    concepts[0, 0] = -1
    return LabelledImages(images, concepts, torch.zeros(n, dtype=torch.long), torch.arange(n))


TRAIN, CALIBRATION = rows(40, 0), rows(20, 1)


def train(seed: int = 0, **settings: Any) -> tuple[ConceptPredictor, dict[str, Any]]:
    return train_concept_predictor(
        ARCHITECTURE, TRAINING | settings, TRAIN, CALIBRATION, seed=seed, progress=lambda done, total: None
    )


def weights(model: ConceptPredictor) -> bytes:
    return save_weights(model, LabelPredictor.zeros(2, 2))


def test_concept_losses_by_hand() -> None:
    """Sums over known concepts of binary cross-entropy; a row of unknown labels loses nothing."""
    logits = torch.tensor([[0.3, -2.0, 5.0], [1.0, 0.0, -1.0], [9.0, 9.0, 9.0]], dtype=torch.float64)
    concepts = torch.tensor([[1, 0, 0], [0, -1, 1], [-1, -1, -1]])
    p = torch.sigmoid(logits)
    one = torch.ones((), dtype=torch.float64)
    expected = [
        binary_cross_entropy(p[0, 0], one) + binary_cross_entropy(p[0, 1], 0 * one) - torch.log(1 - p[0, 2]),
        binary_cross_entropy(p[1, 0], 0 * one) + binary_cross_entropy(p[1, 2], one),
        0 * one,
    ]
    torch.testing.assert_close(concept_losses(logits, concepts), torch.stack(expected))


def test_unknown_labels_send_nothing_back() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    concept_losses(logits, torch.tensor([[-1, 1]])).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, -0.5]]))


def test_confident_errors_have_finite_losses() -> None:
    losses = concept_losses(torch.tensor([[200.0]]), torch.tensor([[0]]))
    torch.testing.assert_close(losses, torch.tensor([200.0]))


def test_predictions_do_not_depend_on_batches_or_mode() -> None:
    model, _ = train()
    whole = model(TRAIN.images)
    model.train()
    # Batches of other sizes may use other kernels: single precision's last digits.
    torch.testing.assert_close(
        predict_logits(model, TRAIN.images, rows_at_a_time=7), whole.detach(), rtol=1e-4, atol=1e-5
    )
    assert not model.training


def test_equal_seeds_make_equal_models_whatever_the_global_generator() -> None:
    torch.manual_seed(1)
    first, history = train()
    torch.manual_seed(2)
    second, again = train()
    assert weights(first) == weights(second)
    assert history == again


@pytest.mark.parametrize("augment", [False, True])
def test_other_seeds_make_other_models(augment: bool) -> None:
    assert weights(train(0, augment=augment)[0]) != weights(train(1, augment=augment)[0])


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    train(epochs=1, augment=True)
    assert torch.equal(torch.rand(1), expected)


def test_training_learns_and_reports_each_epoch() -> None:
    seen: list[tuple[int, int]] = []
    model, report = train_concept_predictor(
        ARCHITECTURE,
        TRAINING | {"epochs": 12},
        TRAIN,
        CALIBRATION,
        seed=0,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(epoch, 12) for epoch in range(1, 13)]
    assert report["epochs_run"] == len(report["history"]) == 12
    losses = [epoch["train_loss"] for epoch in report["history"]]
    assert losses[-1] < 0.7 * losses[0]
    assert not model.training


def held_out(model: ConceptPredictor) -> float:
    return float(concept_losses(predict_logits(model, CALIBRATION.images), CALIBRATION.concepts).mean())


def test_early_stop_returns_the_best_epochs_weights() -> None:
    """At a learning rate this high the calibration loss soon rises."""
    model, report = train(epochs=40, learning_rate=0.05, patience=3)
    losses = [epoch["calibration_loss"] for epoch in report["history"]]
    best = losses.index(min(losses))
    assert report["best_epoch"] == best + 1
    assert report["epochs_run"] == best + 1 + 3 < 40
    assert held_out(model) == pytest.approx(min(losses), rel=1e-6)
    # The learning rate's schedule knows the number of epochs, so the same epochs again need the same settings.
    again, _ = train(epochs=40, learning_rate=0.05, patience=3)
    assert weights(again) == weights(model)


def test_weight_decay_is_that_of_the_objective() -> None:
    """Where no label is known only L2 remains, and Adam's first steps are its sign times the learning rate."""
    unknown = LabelledImages(TRAIN.images, torch.full_like(TRAIN.concepts, -1), TRAIN.classes, TRAIN.sample_ids)
    settings = TRAINING | {"epochs": 1, "batch_size": 40, "learning_rate": 1e-3, "weight_decay": 0.1}
    model, _ = train_concept_predictor(
        ARCHITECTURE, settings, unknown, CALIBRATION, seed=0, progress=lambda done, total: None
    )
    initial, _ = train(epochs=1, learning_rate=0.0)
    before, after = initial.head.weight.detach(), model.head.weight.detach()
    far = before.abs() > 1e-2
    torch.testing.assert_close((before - after)[far], 1e-3 * before[far].sign(), rtol=1e-3, atol=1e-6)


def test_more_rows_per_batch_than_there_are_is_one_batch() -> None:
    _, report = train(epochs=2, batch_size=4096)
    assert report["epochs_run"] == 2


def test_augmentation_changes_the_model_only_when_asked_for() -> None:
    assert weights(train(augment=True)[0]) != weights(train(augment=False)[0])


@pytest.mark.parametrize(("channels", "size", "reach"), [(1, 8, 1), (3, 48, 3)])
def test_shifts_keep_shapes_and_move_each_image_as_a_whole(channels: int, size: int, reach: int) -> None:
    images = torch.rand(12, channels, size, size, generator=torch.Generator().manual_seed(0))
    moved = _shifted(images, torch.Generator().manual_seed(1))
    assert moved.shape == images.shape
    padded = nn.functional.pad(images, (reach,) * 4, mode="replicate")
    offsets = {_offset(one, wide, size, reach) for one, wide in zip(moved, padded, strict=True)}
    assert len(offsets) > 1  # each its own way


def _offset(moved: Tensor, padded: Tensor, size: int, reach: int) -> tuple[int, int]:
    for y in range(2 * reach + 1):
        for x in range(2 * reach + 1):
            if torch.equal(moved, padded[:, y : y + size, x : x + size]):
                return y, x
    raise AssertionError("the image was not moved as a whole")
