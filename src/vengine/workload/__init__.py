"""The user's data → `types.Workload`: texts, pairs, labels, scores, tensors, images, lengths.

| file | what it holds |
|---|---|
| `.txt` | a text a line; empty lines are left out |
| `.jsonl` | a JSON string or object a line; a label may be a list, for models that give a text several |
| | a query with lists of `passages` and their `relevance` is a line too: how they are ordered is judged |
| `.csv`, `.tsv` | columns named in a header; without one: text · text, label · text, text, score |
| `.npz`, `.npy` | arrays with the samples along axis 0, named like the model's inputs; `labels`, `scores` |
| a directory | images; when they all lie in subdirectories, these name the classes |

Column and key names that are understood stand in `TEXT`, `PAIR`, `LABEL` and `SCORE` of `workload.tables`; others
are named by the caller. Nothing is dropped in silence: a line that can't be used is an error that
names it.
"""

from vengine.workload.lengths import read_lengths
from vengine.workload.read import read_workload
from vengine.workload.tensors import fit_tensors

__all__ = ["fit_tensors", "read_lengths", "read_workload"]
