"""Curvature of a concept predictor: EK-FAC factors, exact Gauss-Newton products, and a solver that joins them.

Pure mathematics on torch: a model maps images to logits, a vector maps parameter names to tensors. One scale
throughout: the loss of a sample is summed over concepts, curvature is the mean over samples, and damping is added to
it in the same units.
"""

from worker.curvature.ekfac import EKFAC
from worker.curvature.errors import (
    CheckpointError,
    CurvatureError,
    DecompositionError,
    FactorFileError,
    NonFiniteError,
    TrainingModeError,
    UnsupportedLayerError,
)
from worker.curvature.factors import Factors, FitRecord, assemble, fit_factors
from worker.curvature.ggn import GGN
from worker.curvature.layers import covered_parameters
from worker.curvature.linearization import Linearization
from worker.curvature.moments import merge
from worker.curvature.passes import Batch, Batches, Fit, eigenbases
from worker.curvature.precision import Measurement, Precision, arithmetic, fastest_within, measure
from worker.curvature.solve import Solution, Stop, conjugate_gradients
from worker.curvature.storage import load_factors, save_factors
from worker.curvature.surgery import add_outputs, drop_outputs
from worker.curvature.vectors import ParameterMapping, ParameterVector

__all__ = [
    "EKFAC",
    "GGN",
    "Batch",
    "Batches",
    "CheckpointError",
    "CurvatureError",
    "DecompositionError",
    "FactorFileError",
    "Factors",
    "Fit",
    "FitRecord",
    "Linearization",
    "Measurement",
    "NonFiniteError",
    "ParameterMapping",
    "ParameterVector",
    "Precision",
    "Solution",
    "Stop",
    "TrainingModeError",
    "UnsupportedLayerError",
    "add_outputs",
    "arithmetic",
    "assemble",
    "conjugate_gradients",
    "covered_parameters",
    "drop_outputs",
    "eigenbases",
    "fastest_within",
    "fit_factors",
    "load_factors",
    "measure",
    "merge",
    "save_factors",
]
