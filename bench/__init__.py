"""The harness: configuration, plan, run folder, analysis, report, validation, and the command that ties them together."""
