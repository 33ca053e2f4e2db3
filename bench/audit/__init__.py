"""The audit: after a run, steps that ranks kept are done again in plain PyTorch, and so is the final evaluation.

Shares no code with the engine: order, augmentation, rates and seeds are computed from what the documents promise
(`docs/explanation/validation.md`). It calls the task's model, loss, evaluation, optimizer class, schedule and data set, and
nothing else of ours.
"""
