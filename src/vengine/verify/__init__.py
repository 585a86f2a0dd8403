"""Does the optimised model still answer the same? Arrays in, a `types.Verdict` out.

    arrange      samples → the texts to run, and the outputs back in the samples' order
    soundness    what no budget allows: not finite, other shapes, other scale, a wrong sample
    labels       the user's labels → the model's classes
    probe        class labels for a model that gives vectors: a linear head, fitted on the original
    metrics      accuracy, macro-F1, Spearman, …, or the user's own
    agreement    how far outputs move where nobody labelled anything, and what that implies
    compare      all of these → Verdict
    invariance   does an answer depend on its neighbours and its padding?
    noise        how far the original differs from itself
    statistics   intervals, and how many samples would decide

Nothing here runs a model, except `invariance`, which is handed one as a function.
"""
