"""Exact products with the generalised Gauss-Newton matrix ``F = (1/n) Σ_i J_iᵀ diag(m_i ⊙ p_i(1−p_i))
J_i``."""

import copy
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from worker.curvature.layers import require_eval, require_untied
from worker.curvature.linearization import Linearization
from worker.curvature.outputs import OutputCurvature, bernoulli_variance, masked_curvature
from worker.curvature.vectors import ParameterMapping, ParameterVector, require_same_names, trainable


class GGN:
    """``F`` of ``model`` at its present parameters, over ``n`` given rows.

    The model is copied, so what happens to it afterwards does not matter. Linearisations of up to
    ``cached_rows`` rows live as long as this object and make each further product cheaper by a forward pass;
    the rest are rebuilt chunk by chunk. Memory is that of the activations (about twice those of one training
    step without optimizer) of ``max(chunk_size, cached_rows)`` rows.

    Args:
        model: images ``[B, C, H, W]`` to logits ``[B, k]``, in eval mode.
        x: the rows, ``[n, C, H, W]``, on any device.
        mask: ``[n, k]``, 1 where the concept label is known; None if all are.
        parameters: names of the parameters ``F`` acts on; all trainable ones if None.
        output_mask: ``[k]``, 0 for concepts to leave out (those being dropped).
        output_curvature: the loss curvature at the logits.
        chunk_size: rows per pass.
        cached_rows: rows whose linearisation is kept between products, rounded down to whole chunks; 0 keeps
            none.

    Raises:
        TrainingModeError: a BatchNorm or Dropout is in train mode.
        UnsupportedLayerError: shared parameters.
        KeyError: an unknown parameter name.
        ValueError: no rows, or no parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        parameters: Sequence[str] | None = None,
        output_mask: Tensor | None = None,
        output_curvature: OutputCurvature = bernoulli_variance,
        chunk_size: int = 256,
        cached_rows: int = 1024,
    ) -> None:
        require_eval(model)
        require_untied(model)
        self.parameters = trainable(model) if parameters is None else tuple(parameters)
        if unknown := set(self.parameters) - dict(model.named_parameters()).keys():
            raise KeyError(f"no such parameters: {', '.join(sorted(unknown))}")
        if not self.parameters or x.shape[0] == 0:
            raise ValueError("a curvature product needs at least one row and one parameter")
        self._model = copy.deepcopy(model)
        for name, parameter in self._model.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(name in self.parameters)
        self._x, self._mask, self._output_mask = x, mask, output_mask
        self._output_curvature = output_curvature
        self._device = next(self._model.parameters()).device
        self._starts = range(0, x.shape[0], chunk_size)
        self._chunk_size = chunk_size
        kept = self._starts[: cached_rows // chunk_size] if cached_rows < x.shape[0] else self._starts
        self._cached = [self._chunk(start) for start in kept]

    @property
    def rows(self) -> int:
        """``n``, the rows averaged over."""
        return int(self._x.shape[0])

    def matmul(self, vector: ParameterMapping) -> ParameterVector:
        """``F v``; raises ``ValueError`` unless ``vector`` has exactly the names :attr:`parameters`."""
        require_same_names(vector, dict.fromkeys(self.parameters, self._x))
        total: ParameterVector = {}
        for linearization, weights in self._chunks():
            part = linearization.vjp(weights * linearization.jvp(vector))
            total = {name: total[name].add_(part[name]) for name in total} if total else part
        return {name: total[name] for name in vector}

    def _chunks(self) -> Iterator[tuple[Linearization, Tensor]]:
        yield from self._cached
        for start in self._starts[len(self._cached) :]:
            yield self._chunk(start)

    def _chunk(self, start: int) -> tuple[Linearization, Tensor]:
        """A chunk's linearisation and its output weights ``m ⊙ p(1−p) / n``, ``[b, k]``."""
        part = slice(start, start + self._chunk_size)
        linearization = Linearization(self._model, self._x[part].to(self._device), self.parameters)
        logits = linearization.logits
        weights = masked_curvature(logits, self._to_logits(self._mask, part), self._output_curvature)
        if self._output_mask is not None:
            weights = weights * self._output_mask.to(weights)
        return linearization, weights / self.rows

    def _to_logits(self, mask: Tensor | None, part: slice) -> Tensor | None:
        return None if mask is None else mask[part].to(self._device)
