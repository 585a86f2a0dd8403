"""The verdict: does the optimised model still answer the same, within the user's budget?

How to use it, from samples to verdict:

    texts, index = texts_of(samples, task)          # each text once; pairs apart for vector tasks
    original = arrange(run_original(texts), index)  # name → rows, in the samples' order
    judge = Judge(task, original, samples, budget, labels)
    verdict = judge.verdict(arrange(run_variant(texts), index))

`run_…` returns, for each output, an array [texts, …] or a list of arrays where texts differ in
length (then without padding: [tokens, …]). For the tasks `embedding` and `features` a pair's second
text is run on its own, and `arrange` puts its rows under the output's name with `:pair` behind it
(`sentence_embedding:pair`). Tensor tasks need no texts: hand over arrays in the samples' order.

What is compared:

| task | labels | metric |
|---|---|---|
| embedding, features | scored pairs | Spearman of cosine and score |
| embedding, features | classes | accuracy of a linear probe (`probe`) |
| classification, tensor with one logit a class | classes | accuracy |
| the same | lists of classes | micro-F1 of the logits above zero (`label_sets`) |
| scoring | scores, or numbers as labels | Spearman of logit and score |
| scoring, embedding, features | passages of queries with their relevance | nDCG@10, the mean over queries (`ranking`) |
| embedding, features, tensor | none | mean cosine |
| classification, token-classification | none | share of unchanged classes, or of unchanged sets of them |
| scoring | none | concordance |

`Budget.metric` names another one, the user's own, or `agreement` to leave the labels aside. Before
any metric, and with labels too, the checks of `soundness` run: finite, same form, same scale, no
sample that gets another answer altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vengine.errors import DataError
from vengine.types import Budget, Sample, Task, Verdict
from vengine.verify import agreement, changes, label_sets, paired, ranking, soundness
from vengine.verify.arrange import PAIR, VECTOR_TASKS, Array, Index, Output, arrange, excerpt, stacked, texts_of
from vengine.verify.labels import label_indices
from vengine.verify.metrics import Metric, get_metric
from vengine.verify.outcome import Measured, decide, failed
from vengine.verify.probe import fit_probe, unfit
from vengine.verify.readings import matrix, score_of, scores, vectors
from vengine.verify.soundness import Fault, Movement, cosine_rows
from vengine.verify.strays import stray_fault

__all__ = ["Index", "Judge", "arrange", "texts_of", "verdict"]

Outputs = Mapping[str, Output]
Measure = Callable[[Outputs, Sequence[Movement]], Measured]

AGREEMENT_NAMES = ("agreement", "cosine", "argmax agreement", "concordance")


def verdict(
    task: Task,
    original: Outputs,
    optimized: Outputs,
    samples: Sequence[Sample],
    budget: Budget,
    labels: Sequence[str] = (),
    *,
    seed: int = 0,
) -> Verdict:
    """Judge one optimised model; see `Judge`, which judges many against one original faster."""
    return Judge(task, original, samples, budget, labels, seed=seed).verdict(optimized)


class Judge:
    """The original's answers and what follows from them once: labels read, probe fitted, metric chosen.

    Args:
        task: what the model does; decides how outputs are read.
        original: the untouched model's outputs, in the samples' order (see the module's text).
        samples: the user's data; a metric uses those that have a label or a score.
        budget: the largest drop, the metric (None: chosen from the data) and the confidence.
        labels: the model's class names, in the order of its logits.
        several_labels: a text may have several of them; so it may where the samples list several.
        seed: for the halves of the probe, the bootstrap and the random pairs.

    Raises:
        DataError: the original isn't finite; a label is no class of the model; a metric was asked
            for that these samples can't feed.
        UsageError: there is no such metric, or the user's own fails.
    """

    def __init__(
        self,
        task: Task,
        original: Outputs,
        samples: Sequence[Sample],
        budget: Budget,
        labels: Sequence[str] = (),
        *,
        several_labels: bool = False,
        seed: int = 0,
    ) -> None:
        if not samples:
            raise DataError("there are no samples to compare on", next_step="give a file of texts with --data")
        soundness.check_original(original, samples)
        self.task, self.samples, self.budget, self.seed = task, tuple(samples), budget, seed
        self.original, self.labels = stacked(original), tuple(labels)
        self.several_labels = several_labels
        self.note = ""  # why labels were left aside
        self.noise: float | None = None  # the original's own, relative (`noise.noise_floor`), where it was measured
        self._floats = tuple(name for name, rows in self.original.items() if soundness.is_float(rows))
        self._measure = self._choose()

    def verdict(self, optimized: Outputs) -> Verdict:
        """Compare one optimised model's outputs, arranged like the original's."""
        optimized = stacked(optimized)
        fault = self._form_fault(optimized)
        if fault is not None:
            return failed(fault, self.budget, self.samples)
        moves = [soundness.movement(n, self.original[n], optimized[n]) for n in self._floats]
        fault = soundness.scale_fault(moves, self.budget.max_drop) or self._wrong_sample(moves, optimized)
        if fault is not None:
            return failed(fault, self.budget, self.samples)
        measured = self._measure(optimized, moves)
        note = ". ".join(part for part in (measured.note, self.note) if part)
        rounding = max((m.rounding for m in moves), default=1.0)
        return decide(replace(measured, note=note), self.budget, self.samples, rounding, self.noise if moves else None)

    def _form_fault(self, optimized: Outputs) -> Fault | None:
        fault = soundness.form_fault(self.original, optimized)
        if fault:
            return Fault(check="shape", reason=fault)
        place = soundness.first_not_finite(optimized)
        if place is None:
            return None
        name, i = place
        reason = f"output {name} is NaN or infinite for sample {i + 1}: {excerpt(self.samples[i])!r}"
        return Fault(check="finite", reason=reason, sample=i)

    def _wrong_sample(self, moves: Sequence[Movement], optimized: Outputs) -> Fault | None:
        if not soundness.directional(self.task):
            name = self._logits_name() if self._floats else ""
            if not name:
                return None
            original, sets = self.original[name], self.several_labels
            return stray_fault(self.task, original, optimized[name], self.samples, self.labels, sets=sets)
        found = (soundness.wrong_sample_fault(m, self.original[m.name], self.samples, self.seed) for m in moves)
        return next((fault for fault in found if fault is not None), None)

    # --- which measure -----------------------------------------------------------------------

    def _choose(self) -> Measure:
        wanted = self.budget.metric
        if wanted in AGREEMENT_NAMES:
            return self._agreement()
        ranked = self._ranked(wanted)
        if ranked is not None:
            return ranked
        metric = None if wanted is None else get_metric(wanted, self.budget.direction)
        scored = [i for i, s in enumerate(self.samples) if score_of(s, self.task) is not None]
        labelled = [i for i, s in enumerate(self.samples) if s.label is not None]
        listed = any(s.labels is not None for s in self.samples)
        sets = [i for i, s in enumerate(self.samples) if s.labels is not None or (s.label is not None and listed)]
        choice: Measure | None = None
        if scored and (metric is None or metric.needs != "class"):
            choice = self._scored(metric or get_metric("spearman"), scored)
        elif sets and (metric is None or metric.needs != "score"):
            choice = self._sets(metric or get_metric("micro_f1"), sets)
        elif labelled and (metric is None or metric.needs != "score"):
            choice = self._labelled(metric or get_metric("accuracy"), labelled)
        elif metric is None:
            choice = self._agreement()
        if choice is not None:
            if metric is not None and metric.needs == "any":  # the user's own: what it raises, it raises here
                choice(self.original, [soundness.movement(n, self.original[n], self.original[n]) for n in self._floats])
            return choice
        if metric is not None:
            raise DataError(
                f"metric {metric.name!r} can't be computed for task {self.task} on these samples",
                where=self.note or f"{len(labelled)} of {len(self.samples)} have a class, {len(scored)} a score",
                next_step="give the data that the metric needs, or take the metric away",
            )
        return self._agreement()

    def _agreement(self) -> Measure:
        if not self._floats:
            return lambda optimized, _: agreement.equal_values(self.original, optimized, self.budget)
        if soundness.directional(self.task):
            return lambda optimized, moves: agreement.directions(
                moves, self.original, optimized, self.samples, self.budget, self.seed
            )
        name, budget = self._logits_name(), self.budget
        if self.task == "token-classification":
            return lambda optimized, _: agreement.token_classes(
                self.original[name], optimized[name], self.labels, self.samples, budget, self.seed
            )
        if self.task == "scoring":
            return lambda optimized, _: agreement.scores(
                scores(self.original[name]), scores(optimized[name]), self.samples, budget, self.seed
            )
        if self.several_labels and self.task == "classification":
            logits, rows = matrix(self.original[name]), range(len(self.samples))
            return lambda optimized, _: label_sets.agreement(
                self._flips(rows, logits, matrix(optimized[name])), self.budget
            )
        return lambda optimized, _: agreement.classes(
            matrix(self.original[name]), matrix(optimized[name]), self.labels, self.samples, budget
        )

    def _logits_name(self) -> str:
        return "logits" if "logits" in self.original else self._floats[0]

    # --- scored samples ----------------------------------------------------------------------

    def _scored(self, metric: Metric, rows: list[int]) -> Measure | None:
        read = self._score_reader()
        if read is None:
            return None
        truth = np.array([score_of(self.samples[i], self.task) for i in rows], dtype=np.float64)
        before = read(self.original)[rows]

        def measured(optimized: Outputs, _: Sequence[Movement]) -> Measured:
            after = read(optimized)[rows]
            move = np.abs(after - before)
            worst = int(np.argmax(move))
            result = paired.measured(metric, before, after, truth, self.budget, self.seed)
            moved = changes.of_scores([self.samples[i] for i in rows], before, after)
            return replace(result, worst=float(move[worst]), worst_sample=rows[worst], changes=moved)

        return measured

    def _ranked(self, wanted: str | None) -> Measure | None:
        """For passages in groups, or where it was asked for: how well each query's are ordered."""
        if wanted is None and any(s.group is not None for s in self.samples):
            wanted = ranking.DEFAULT
        depth = ranking.depth_of(wanted)
        if wanted is None or depth is None:
            return None
        rows = [i for i, s in enumerate(self.samples) if s.score is not None]
        groups, read = ranking.groups_of(self.samples, rows), self._score_reader()
        if not groups or read is None:
            raise DataError(
                f"metric {wanted!r} needs queries with several passages of different relevance",
                where=self.note or f"{len(rows)} of {len(self.samples)} samples have a score",
                next_step='give lines as {"query": …, "passages": […], "relevance": [2, 0, …]}',
            )
        truth = np.array([self.samples[i].score for i in rows], dtype=np.float64)
        metric, before = ranking.metric(wanted), read(self.original)[rows]
        first = ranking.by_query(before, truth, groups, depth)

        def measured(optimized: Outputs, _: Sequence[Movement]) -> Measured:
            after = read(optimized)[rows]
            last = ranking.by_query(after, truth, groups, depth)
            fell = int(np.argmax(first - last))
            result = paired.measured(metric, first, last, first, self.budget, self.seed)
            moved = changes.of_scores([self.samples[i] for i in rows], before, after)
            worst, sample = float((first - last)[fell]), rows[int(groups[fell][0])]
            worse, better = int(np.sum(last < first)), int(np.sum(last > first))
            told = f"{len(groups)} queries, {worse} ordered worse and {better} better"
            note = ". ".join(part for part in (told, result.note) if part)
            return replace(result, worst=worst, worst_sample=sample, changes=moved, note=note)

        return measured

    def _score_reader(self) -> Callable[[Outputs], Array] | None:
        if self.task in VECTOR_TASKS:
            if any(s.pair is None for s in self.samples):
                self.note = "Scores were left aside: a score belongs to a pair of texts"
                return None
            return lambda outputs: cosine_rows(vectors(outputs), vectors(outputs, PAIR))
        if self.task == "scoring":
            name = self._logits_name()
            return lambda outputs: scores(outputs[name])
        self.note = f"Scores were left aside: they say nothing about the task {self.task}"
        return None

    # --- classes -----------------------------------------------------------------------------

    def _labelled(self, metric: Metric, rows: list[int]) -> Measure | None:
        if self.task in VECTOR_TASKS:
            return self._probed(metric)
        if self.task == "classification" or self._tensor_logits():
            return self._classified(metric, rows)
        self.note = f"Labels were left aside: one class a sample can't judge the task {self.task}"
        return None

    def _tensor_logits(self) -> bool:
        rows = self.original[self._logits_name()] if self._floats else []
        return self.task == "tensor" and isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] > 1

    def _classified(self, metric: Metric, rows: list[int]) -> Measure:
        name = self._logits_name()
        logits = matrix(self.original[name])
        width = max(2, logits.shape[1])
        names = self.labels if len(self.labels) == width else tuple(str(i) for i in range(width))
        truth = label_indices([self.samples[i] for i in rows], self.labels, width)
        before = agreement.decisions(logits[rows])
        likely = agreement.probabilities(logits[rows])

        def measured(optimized: Outputs, _: Sequence[Movement]) -> Measured:
            after_logits = matrix(optimized[name])
            move = agreement.probability_move(logits, after_logits)
            result = paired.compare_classes(
                metric,
                before,
                agreement.decisions(after_logits[rows]),
                truth,
                names,
                np.array(rows),
                likely,
                self.samples,
                self.budget,
                self.seed,
            )
            return replace(result, worst=float(move.max()), worst_sample=int(np.argmax(move)))

        return measured

    def _flips(self, rows: Sequence[int], before: Array, after: Array) -> label_sets.Flips:
        judged = [self.samples[i] for i in rows]
        return label_sets.Flips(samples=judged, rows=rows, before=before, after=after, names=self.labels)

    def _sets(self, metric: Metric, rows: list[int]) -> Measure | None:
        if self.task != "classification" and not self._tensor_logits():
            self.note = f"Lists of labels were left aside: they can't judge the task {self.task}"
            return None
        name = self._logits_name()
        logits = matrix(self.original[name])[rows]
        truth = label_sets.true_sets(self.samples, self.labels, logits.shape[1])[rows]
        before = label_sets.answered_sets(logits)

        def measured(optimized: Outputs, _: Sequence[Movement]) -> Measured:
            flips = self._flips(rows, logits, matrix(optimized[name])[rows])
            sets = before, label_sets.answered_sets(flips.after), truth
            judged = tuple(label_sets.set_codes(*sets)) if metric.name == "accuracy" else sets
            result = paired.measured(metric, judged[0], judged[1], judged[2], self.budget, self.seed)
            losses, gains = label_sets.losses_and_gains(*sets, whole=metric.name == "accuracy")
            if metric.needs == "class":
                result = paired.widen(result, losses, gains, self.budget.confidence)
            return flips.told(paired.with_mcnemar(result, losses, gains))

        return measured

    def _probed(self, metric: Metric) -> Measure | None:
        labels = [s.label for s in self.samples]
        fault = unfit(labels)
        if fault:
            self.note = f"Judged by agreement, because the labels can't train a probe: {fault}"
            return None
        probe = fit_probe(vectors(self.original), labels, self.seed)
        before, likely = probe.predict(vectors(self.original)), probe.probabilities(vectors(self.original))
        if probe.left_out:
            self.note = f"{probe.left_out} samples alone in their class, or without one, were left out of the probe"

        def measured(optimized: Outputs, moves: Sequence[Movement]) -> Measured:
            after = probe.predict(vectors(optimized))
            result = paired.compare_classes(
                metric,
                before,
                after,
                probe.truth,
                probe.classes,
                probe.rows,
                likely,
                self.samples,
                self.budget,
                self.seed,
            )
            cosine = np.min([m.cosine for m in moves], axis=0)
            return replace(result, worst=float(cosine.min()), worst_sample=int(np.argmin(cosine)))

        return measured
