"""The audit: after a run, it repeats the steps that ranks kept, in plain PyTorch, and the final evaluation.

It shares no code with the engine: it computes order, augmentation, rates and seeds from what the documents promise
(`docs/explanation/validation.md`). Of the project's code it calls only the task's model, loss, evaluation, optimizer
class, schedule and data set.
"""
