"""Run folders as they are read: schema, records, analysis, cells. Imports no torch and starts nothing."""
