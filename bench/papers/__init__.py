"""The experiments of "Controllable Concept Bottleneck Models" on the data sets it names; run by ``bench/paper.py``.

Every edit is a pair of :class:`papers.states.State`: the training rows before and after. The base version is trained on
the one, the reference on the other, and each method gets from the one to the other.
"""
