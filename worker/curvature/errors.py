"""Errors of the curvature room; every one names the layer, parameter or file it is about."""


class CurvatureError(Exception):
    """Base of all errors raised by :mod:`worker.curvature`."""


class UnsupportedLayerError(CurvatureError):
    """A trainable parameter belongs to a layer for which no curvature factor exists, or is shared."""


class TrainingModeError(CurvatureError):
    """A layer whose output depends on the rest of the batch, or on chance, is in train mode."""


class NonFiniteError(CurvatureError):
    """A NaN or an infinity appeared where a finite number is required."""


class DecompositionError(CurvatureError):
    """Every eigensolver failed on a matrix."""


class FactorFileError(CurvatureError):
    """A factor file is truncated, corrupt, or not a factor file."""


class CheckpointError(CurvatureError):
    """A checkpoint is damaged, or of another fit than the one that goes on from it."""
