"""What the evidence says, in words: each finding has a code, a sentence and the numbers that it rests on.

Several readings are looked at together (two outputs, one or two attacks), so each is held to a confidence of
``1 − 0.05/k``: the chance that any of ``k`` readings of a perfect edit makes a finding stays at five per cent
(Bonferroni). Where a retrained model exists, it and not 0.5 is what the edited one is held against: removed rows may
be harder or easier than test rows by nature, and a retrained model shows by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worker.evidence.auc import CONFIDENCE, FEW_ROWS, Area, area, auc, difference, quantile
from worker.evidence.audit import Attack
from worker.evidence.membership import Output

Json = dict[str, Any]

MEMORISED_AUC = 0.9
"""The loss attack tells nine of ten (train, test) pairs: the losses of the two hardly overlap, so the level to which
removed rows must rise lies far outside what the curvature at the trained weights describes."""
MEMORISED_ROWS = 5
"""Fewer removed rows reach 0.9 by luck: one row in ten, five rows in one of 4,000."""
MEMORISED_GAP = 0.1
"""Of concept F1 between removed rows and test rows: five times the loss that an edit may cost by default."""
READ = ("loss", "rmia")


def findings(found: Sequence[Attack], concept_f1: tuple[float, float] | None) -> list[Json]:
    """Every finding that the attacks support.

    Args:
        found: attacks, with ``before``, ``after`` and, in a comparison, ``retrained``.
        concept_f1: before the edit, of removed rows and of test rows.
    """
    read = [attack for attack in found if attack.name in READ and attack.runs]
    few = [attack for attack in read if min(_sides(attack)) < FEW_ROWS]
    enough = [attack for attack in read if attack not in few]
    result = _memorised(read, concept_f1) + ([_few_rows(few)] if few else [])
    for attack in enough:
        confidence = 1 - (1 - CONFIDENCE) / len(enough)
        judge = _against_retrained if "retrained" in attack.runs else _against_half
        result += [one for one in [judge(attack, confidence)] if one is not None]
    return result


def _few_rows(few: Sequence[Attack]) -> Json:
    members, others = (min(side) for side in zip(*map(_sides, few), strict=True))
    intervals = [(attack, area(attack.runs["after"])) for attack in few]
    off = [_words(attack) for attack, found in intervals if not found.low <= 0.5 <= found.high]
    return {
        "code": "few_rows",
        "sentence": f"{members} removed and {others} unseen rows are too few for a verdict on whether the model still "
        f"knows the removed ones: that takes {FEW_ROWS} of each. Read the intervals, each of which holds the attack's "
        "area with 95% confidence: "
        + (f"0.5 is outside that of the {' and of the '.join(off)}." if off else "0.5 is in all of them.")
        + (_advice(few) if members < FEW_ROWS else ""),
        "numbers": {
            "members": members,
            "non_members": others,
            "intervals": {f"{attack.name}.{attack.output}": _ends(found) for attack, found in intervals},
        },
    }


def _advice(few: Sequence[Attack]) -> str:
    """What tells more of so few removed rows, as far as it has not been done."""
    if all(attack.name != "rmia" for attack in few):
        asked = 'evidence "full" with reference models'
        asked += " or a retraining" if all("retrained" not in attack.runs for attack in few) else ""
        return f" For so few rows ask for {asked}: the loss attack takes hard rows for forgotten ones."
    if all("retrained" not in attack.runs for attack in few):
        return " For so few rows compare with a retraining."
    return ""


def _memorised(read: Sequence[Attack], concept_f1: tuple[float, float] | None) -> list[Json]:
    """Of the model before the edit; the removed rows stand for its training rows."""
    members = max((_sides(attack)[0] for attack in read), default=0)
    areas = {
        attack.output: auc(attack.runs["before"][0])
        for attack in read
        if attack.name == "loss" and len(attack.runs["before"][0].members) >= MEMORISED_ROWS
    }
    known = {output: value for output, value in areas.items() if value > MEMORISED_AUC}
    gap = None if concept_f1 is None or members < FEW_ROWS else concept_f1[0] - concept_f1[1]
    if not known and (gap is None or gap <= MEMORISED_GAP):
        return []
    numbers: Json = {f"auc_before_{output}": value for output, value in areas.items()}
    if gap is not None and concept_f1 is not None:
        numbers |= {"concept_f1_removed": concept_f1[0], "concept_f1_test": concept_f1[1]}
    return [
        {
            "code": "memorised",
            "sentence": "Before the edit the model had learned its training rows by heart: "
            + " and ".join(_signs(known, gap))
            + ". One step along the curvature of such a model cannot be trusted to land where a retraining would; "
            "compare this edit with a retraining.",
            "numbers": numbers,
        }
    ]


def _signs(known: Mapping[Output, float], gap: float | None) -> list[str]:
    signs = [f"an attack on the {output} told {value:.0%} of pairs right" for output, value in known.items()]
    if gap is not None and gap > MEMORISED_GAP:
        signs.append(f"concept F1 was {gap:.2f} higher on removed rows than on test rows")
    return signs


def _against_half(attack: Attack, confidence: float) -> Json | None:
    found = area(attack.runs["after"], confidence)
    numbers = {**_where(attack), "auc_after": found.value, "interval": _ends(found), "confidence": confidence}
    if found.low > 0.5:
        sentence = (
            f"The {_words(attack)} still tells removed rows from unseen ones (AUC {found.value:.3f}, above 0.5 by more "
            "than chance): the model remembers them, or they are easier than the test rows. A retraining tells which."
        )
        return {"code": "still_remembered", "sentence": sentence, "numbers": numbers}
    if found.high < 0.5:
        sentence = (
            f"Removed rows look worse fitted than unseen ones to the {_words(attack)} (AUC {found.value:.3f}, below "
            "0.5 by more than chance): the edit went too far, which also gives them away, or they are harder than the "
            "test rows. A retraining tells which."
        )
        return {"code": "over_forgotten", "sentence": sentence, "numbers": numbers}
    return None


def _against_retrained(attack: Attack, confidence: float) -> Json | None:
    """Beyond the rows' chance and, from two retrainings on, beyond what one retraining differs from the next."""
    after, retrained = attack.runs["after"], attack.runs["retrained"]
    apart = difference(after, retrained)
    areas = [auc(scores) for scores in retrained]
    # The edited model stands for one retraining more, so its own seed's luck counts beside that of their mean.
    seeds = float(np.var(areas, ddof=1)) * (1 + 1 / len(areas)) if len(areas) > 1 else None
    reach = quantile(confidence) * float((apart.standard_error**2 + (seeds or 0.0)) ** 0.5)
    low, high = apart.value - reach, apart.value + reach
    numbers = {
        **_where(attack),
        "auc_after": auc(after[0]),
        "auc_retrained": float(np.mean(areas)),
        "difference": apart.value,
        "interval": [low, high],
        "confidence": confidence,
        "retrainings": len(areas),
        "seed_deviation": None if seeds is None else float(np.std(areas, ddof=1)),
    }
    where = f"(AUC {numbers['auc_after']:.3f} against {numbers['auc_retrained']:.3f} retrained)"
    if low > 0:
        sentence = f"The {_words(attack)} tells removed rows better than in a model that never saw them {where}."
        return {"code": "still_remembered", "sentence": sentence, "numbers": numbers}
    if high < 0:
        sentence = (
            f"Removed rows look worse fitted to the {_words(attack)} than in a model that never saw them {where}: "
            "the edit went too far, which also gives them away."
        )
        return {"code": "over_forgotten", "sentence": sentence, "numbers": numbers}
    return None


def _sides(attack: Attack) -> tuple[int, int]:
    """Members and non-members."""
    scores = attack.runs["after"][0]
    return len(scores.members), len(scores.non_members)


def _where(attack: Attack) -> Json:
    members, others = _sides(attack)
    return {"attack": attack.name, "output": attack.output, "members": members, "non_members": others}


def _words(attack: Attack) -> str:
    name = "loss attack" if attack.name == "loss" else "RMIA attack"
    return f"{name} on the {attack.output}"


def _ends(found: Area) -> list[float]:
    return [found.low, found.high]
