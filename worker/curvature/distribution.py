"""One fit by several processes of :mod:`torch.distributed`, each with rows of its own.

Sums are added over the processes after each pass; the eigenproblems between the passes are shared out among them, and
every process gets every result. All functions are collective: every process of the group has to call them, in the same
order. Without a group they do the same alone.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from worker.curvature.eigen import Eigenbasis
from worker.curvature.errors import CurvatureError
from worker.curvature.moments import Moments, SecondMoment
from worker.curvature.passes import Bases, Progress, bases_of, eigenbasis, silent

Group = dist.ProcessGroup


def rank_and_size(group: Group | None) -> tuple[int, int]:
    """This process's number in the group, and how many there are."""
    return (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))


def true_everywhere(answer: bool, like: Tensor, group: Group | None) -> bool:
    """Whether ``answer`` is true in every process; none returns before all have called."""
    if group is None:
        return answer
    flag = like.new_full((), int(answer), dtype=torch.int64)
    dist.all_reduce(flag, dist.ReduceOp.MIN, group)
    return bool(flag)


def summed_covariances(moments: Moments[SecondMoment], like: Tensor, group: Group | None) -> Moments[SecondMoment]:
    """The first pass's sums over the rows of all processes; ``like`` has the model's device and type."""
    if group is None:
        return moments
    count = _summed_count(moments.count, like, group)
    held = like.new_tensor([_held_or_minus_one(moment) for moment in moments.sums.values()], dtype=torch.int64)
    everyones = [torch.empty_like(held) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, held, group)
    per_moment = torch.stack(everyones, dim=1).tolist()
    sums: dict[str, SecondMoment] = {}
    for (key, moment), rows in zip(moments.sums.items(), per_moment, strict=True):
        total = SecondMoment(moment.width, moment.groups)
        if moment.groups is None and min(rows) >= 0 and sum(rows) < moment.width:
            total.rows = _gathered_rows(moment, rows, like, group)
        else:
            total.total = moment.matrix(like).clone()
            dist.all_reduce(total.total, group=group)
        sums[key] = total
    return Moments(count, sums)


def summed_eigenvalues(moments: Moments[Tensor], like: Tensor, group: Group | None) -> Moments[Tensor]:
    """The second pass's sums over the rows of all processes, in place."""
    if group is None:
        return moments
    for total in moments.sums.values():
        dist.all_reduce(total, group=group)
    return Moments(_summed_count(moments.count, like, group), moments.sums)


def shared_eigenbases(
    covariances: Moments[SecondMoment], like: Tensor, group: Group | None, progress: Progress = silent
) -> Bases:
    """Eigenbases of the summed moments, of the type of ``like``; each process decomposes its share. To save memory each
    moment is emptied when it is done with.

    Raises:
        CurvatureError: a matrix could not be decomposed; where it was another process's, the message says so.
    """
    rank, size = rank_and_size(group)
    owner = shares({key: moment.width for key, moment in covariances.sums.items()}, size)
    found: dict[str, Eigenbasis] = {}
    failure: Exception | None = None
    for key in covariances.sums:
        if owner[key] == rank and failure is None:
            try:
                found[key] = eigenbasis(covariances, key).to(like.device, like.dtype)
            except (CurvatureError, ValueError) as error:
                failure = error
            progress("eigenbases", len(found))
        covariances.sums[key].clear()
    if not true_everywhere(failure is None, like, group):
        raise failure or CurvatureError("another process of the group could not decompose a layer's moments")
    if failure is not None:
        raise failure
    if group is not None:
        found = _broadcast(found, covariances.sums, owner, like, group)
        progress("eigenbases", len(found))
    return bases_of(covariances.count, {key: found[key] for key in covariances.sums})


def shares(widths: Mapping[str, int], size: int) -> dict[str, int]:
    """Who decomposes what: the widest first, each to the process with the least work (cubes of widths) so far."""
    work = [0] * size
    owner: dict[str, int] = {}
    for key in sorted(widths, key=lambda key: (-widths[key], key)):
        owner[key] = work.index(min(work))
        work[owner[key]] += widths[key] ** 3
    return owner


def _summed_count(count: int, like: Tensor, group: Group) -> int:
    total = like.new_full((), count, dtype=torch.int64)
    dist.all_reduce(total, group=group)
    return int(total)


def _held_or_minus_one(moment: SecondMoment) -> int:
    """Rows kept as such, or -1 where there is a sum already."""
    return -1 if moment.total is not None or moment.groups is not None else moment.held


def _gathered_rows(moment: SecondMoment, counts: list[int], like: Tensor, group: Group) -> list[Tensor]:
    padded = like.new_zeros(max(counts), moment.width)  # gathered tensors must agree in shape
    if moment.rows:
        padded[: moment.held] = torch.cat(moment.rows)
    everyones = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(everyones, padded, group)
    return [rows[:held] for rows, held in zip(everyones, counts, strict=True) if held]


def _broadcast(
    own: Mapping[str, Eigenbasis],
    sums: Mapping[str, SecondMoment],
    owner: Mapping[str, int],
    like: Tensor,
    group: Group,
) -> dict[str, Eigenbasis]:
    ranks = like.new_tensor([own[key].values.shape[-1] if key in own else 0 for key in sums], dtype=torch.int64)
    dist.all_reduce(ranks, group=group)
    result: dict[str, Eigenbasis] = {}
    for (key, moment), columns in zip(sums.items(), ranks.tolist(), strict=True):
        stack = () if moment.groups is None else (moment.groups,)
        if key in own:
            basis = Eigenbasis(own[key].vectors.contiguous(), own[key].values.contiguous())
        else:
            basis = Eigenbasis(like.new_empty(*stack, moment.width, columns), like.new_empty(*stack, columns))
        source = dist.get_global_rank(group, owner[key])
        dist.broadcast(basis.vectors, source, group)
        dist.broadcast(basis.values, source, group)
        result[key] = basis
    return result
