"""Samples for curvature, and held-out losses that are remembered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.worker.editing.moving import CALIBRATION, TRAIN, Recorder, bench_of, flipped, trained_net
from tests.worker.editing.rows import edited, random_rows
from worker.cbm.training import concept_losses, predict_logits
from worker.curvature import vectors
from worker.editing.bench import curvature_sample
from worker.editing.step import Line, recompute_statistics

pytestmark = pytest.mark.usefixtures("double")


class TestCurvatureSample:
    def test_everything_is_included_where_there_is_room(self) -> None:
        data = edited(TRAIN, fixed=flipped(TRAIN, range(5)), removed=[30], added=random_rows(4, first_id=900))
        rows, weights = curvature_sample(data, 1000, seed=0)
        assert sorted(rows.sample_ids.tolist()) == sorted(data.after.sample_ids.tolist())
        assert torch.equal(weights, torch.ones(len(data.after)))

    @pytest.mark.parametrize(("touched", "size"), [(3, 20), (20, 20), (20, 7), (59, 20), (1, 2)])
    def test_each_stratum_weighs_its_share(self, touched: int, size: int) -> None:
        """So the weighted mean of any function is unbiased: within a stratum all rows weigh the same."""
        data = edited(TRAIN, fixed=[(i, 0, 1 - int(TRAIN.concepts[i, 0])) for i in range(touched)])
        rows, weights = curvature_sample(data, size, seed=0)
        assert len(rows) == len(weights) == len(set(rows.sample_ids.tolist())) <= size
        fixed = torch.isin(rows.sample_ids, TRAIN.sample_ids[:touched])
        assert int(fixed.sum()) == min(touched, size // 2)
        assert float(weights.mean()) == pytest.approx(1.0)
        assert float(weights[fixed].sum() / weights.sum()) == pytest.approx(touched / len(TRAIN))
        for stratum in (weights[fixed], weights[~fixed]):
            assert len(set(stratum.tolist())) == 1

    def test_one_stratum_alone_is_a_plain_sample(self) -> None:
        nothing = edited(TRAIN)
        everything = edited(TRAIN, fixed=[(i, 0, 1 - int(TRAIN.concepts[i, 0])) for i in range(60)])
        for data, size in ((nothing, 10), (everything, 5)):
            rows, weights = curvature_sample(data, 10, seed=0)
            assert len(rows) == size
            assert torch.equal(weights, torch.ones(size))

    def test_samples_follow_the_seed(self) -> None:
        data = edited(TRAIN)
        first, again, other = (curvature_sample(data, 10, seed=seed)[0].sample_ids.tolist() for seed in (1, 1, 2))
        assert first == again
        assert first != other


class TestHeldOut:
    """Features are remembered while the backbone stays; the head is applied anew."""

    @staticmethod
    def passes_of(bench: Recorder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """To be: how many rows each pass through the backbone is of."""
        passes: list[int] = []
        features = bench.twin.features

        def counted(images: Tensor) -> Tensor:
            passes.append(len(images))
            return features(images)

        monkeypatch.setattr(bench.twin, "features", counted)
        return passes

    @staticmethod
    def require_true(bench: Recorder) -> None:
        expected = predict_logits(bench.model, CALIBRATION.images)
        torch.testing.assert_close(bench.held_out, expected, rtol=0, atol=1e-12)
        losses = concept_losses(expected, CALIBRATION.concepts)
        torch.testing.assert_close(bench.held_out_losses, losses, rtol=0, atol=1e-12)
        assert bench.held_out_loss == pytest.approx(float(losses.mean()), rel=1e-12)

    def test_the_head_moves_without_another_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = bench_of(trained_net())
        passes = self.passes_of(bench, monkeypatch)
        self.require_true(bench)
        with torch.no_grad():
            bench.model.head.weight.mul_(1.1)
            bench.model.head.bias.add_(0.3)
        self.require_true(bench)
        assert passes == [len(CALIBRATION)]

    def test_a_backbone_that_moves_is_passed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By a step along a line, by statistics computed anew, by statistics alone."""
        bench = bench_of(trained_net())
        passes = self.passes_of(bench, monkeypatch)
        self.require_true(bench)
        line = Line(bench.model, {name: 0.1 * value for name, value in vectors.from_parameters(bench.model).items()})
        moves: tuple[Callable[[], object], ...] = (
            lambda: line.at(1.0),
            lambda: line.at(0.0),
            lambda: recompute_statistics(bench.model, TRAIN.images),
            lambda: bench.model.get_buffer("backbone.1.running_mean").add_(0.1),
        )
        for count, move in enumerate(moves):
            before = bench.held_out
            move()
            assert not torch.allclose(bench.held_out, before)
            self.require_true(bench)
            assert passes == (count + 2) * [len(CALIBRATION)]
