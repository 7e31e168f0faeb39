"""Ways from a base version to the edited one, each with its seconds; trainings are done once and remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rivals import Recipe, Request, Settled, edited, factors_of, now

from papers.direct import Direct, direct_influence
from papers.loading import PaperData
from papers.scores import Scores, predictions, scores_of
from papers.states import Edit, State, in_columns, request_of
from worker.curvature import CurvatureError, Factors, drop_outputs
from worker.editing.bench import Settings
from worker.editing.guard import EditRefused

METHODS = ("retrain", "cbm_if", "closed_form", "ours")
"""Training anew; influence without EK-FAC; the paper's CCBM, one EK-FAC step; this project's engine."""

FACTOR_FITTING = {"retrain": "none", "cbm_if": "none", "closed_form": "inside", "ours": "outside"}
"""Whether the seconds of a method hold the fit of its factors."""


REMEMBERED = 64
"""Models, the least recently used forgotten first: more than lie between two uses of one, and 3 GiB of ResNet-18."""


@dataclass(frozen=True)
class Outcome:
    """``model`` is None where the method ended without one; ``details`` then say why under ``failure``."""

    model: Settled | None
    seconds: float | None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How much of the protocol."""

    methods: tuple[str, ...]
    repeats: int
    seeds: int
    ratios: tuple[float, ...]
    rounds: int
    direct: Direct


class Workshop:
    """One data set's models and edits.

    Attributes:
        say: takes a line about every training and edit.
        progress: called with (epochs done, epochs) of a training.
    """

    def __init__(
        self,
        data: PaperData,
        recipe: Recipe,
        options: Options,
        say: Callable[[str], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self.data, self.recipe, self.options = data, recipe, options
        self.say, self.progress = say, progress
        self._models: OrderedDict[tuple[str, int], tuple[Settled, float]] = OrderedDict()
        self._factors: tuple[tuple[str, int], Factors, float] | None = None
        self._warm: set[str] = set()

    def trained(self, state: State, seed: int) -> tuple[Settled, float]:
        """A model of the state, and the seconds that its training took."""
        key = state.name, seed
        if key not in self._models:
            calibration = in_columns(self.data.calibration, state.columns)
            self._models[key] = self.recipe.trained(state.training, calibration, seed, self.progress)
            self.say(f"trained on {state.name!r} with seed {seed} in {self._models[key][1]:.1f} s")
            if len(self._models) > REMEMBERED:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key]

    def factors(self, state: State, seed: int) -> tuple[Factors, float]:
        """Those of the state's model, and the seconds that the fit took; the last ones are remembered."""
        key = state.name, seed
        if self._factors is None or self._factors[0] != key:
            start = now(self.data.train)
            factors = factors_of(self.trained(state, seed)[0][0], state.training)
            self._factors = key, factors, now(self.data.train) - start
        return self._factors[1], self._factors[2]

    def by(self, method: str, edit: Edit, seed: int) -> Outcome:
        """The edit of the version trained with that seed; the reference is trained with the same."""
        if method == "retrain":
            return Outcome(*self.trained(edit.after, seed))
        base, _ = self.trained(edit.before, seed)
        factors, _ = self.factors(edit.before, seed)
        request = request_of(edit, self.data.calibration)
        if method not in self._warm:  # kernels are chosen and memory is taken the first time
            self._warm.add(method)
            self._edited(method, base, factors, request, seed, refit=False)  # a fit has been done before
        outcome = self._edited(method, base, factors, request, seed)
        self._told(method, edit, outcome)
        return outcome

    def chain(self, method: str, level: str, states: list[State], seed: int) -> list[Outcome]:
        """The edits from each state to the next, each of the version that the last one made.

        A failed edit leaves the version as it is, and the next one asks for both.
        """
        if method == "retrain":
            return [Outcome(*self.trained(state, seed)) for state in states[1:]]
        model, _ = self.trained(states[0], seed)
        factors, _ = self.factors(states[0], seed)
        at, outcomes = states[0], []
        for state in states[1:]:
            edit = Edit(level, at, state)
            request = request_of(edit, self.data.calibration)
            outcome = self._edited(method, model, factors, request, seed)
            self._told(method, edit, outcome)
            outcomes.append(outcome)
            if outcome.model is None:
                continue
            model, at = outcome.model, state
            if request.data.dropped:
                factors = drop_outputs(factors, "head", list(request.data.dropped))
        return outcomes

    def distance(self, model: Settled, columns: Sequence[int], edit: Edit, seed: int) -> float:
        """Mean |Δp| on the test rows to the reference, over the concepts that it has.

        Args:
            columns: that the model has.
        """
        reference, _ = self.trained(edit.after, seed)
        shared = [list(columns).index(column) for column in edit.after.columns]
        p, q = (predictions(one, self.data.test)[0] for one in (model, reference))
        return float((p[:, shared] - q).abs().mean())

    def scores(self, model: Settled, state: State) -> Scores:
        """Of a model with the state's columns, on the test rows."""
        return scores_of(model, self.data.test, state.columns, len(self.data.classes))

    def _edited(
        self, method: str, base: Settled, factors: Factors, request: Request, seed: int, *, refit: bool = True
    ) -> Outcome:
        try:
            if method == "cbm_if":
                return Outcome(*direct_influence(self.recipe, base, request, self.options.direct, seed))
            kind: Literal["closed_form", "solve"] = "closed_form" if method == "closed_form" else "solve"
            settings = Settings(seed=seed)
            made = edited(self.recipe, base, factors, request, method=kind, settings=settings, refit=refit)
        except CurvatureError as error:  # of a model that an earlier step has ruined
            return Outcome(None, None, {"failure": str(error)})
        if isinstance(made, EditRefused):
            return Outcome(None, None, {"failure": f"refused ({made.code}): {made.detail}"})
        model, seconds, report = made
        return Outcome(model, seconds, {"relative_norm": report["step"]["relative_norm"]})

    def _told(self, method: str, edit: Edit, outcome: Outcome) -> None:
        end = outcome.details["failure"] if outcome.seconds is None else f"{outcome.seconds:.2f} s"
        self.say(f"{edit.level}: {method} from {edit.before.name!r}: {end}")
