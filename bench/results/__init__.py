"""Reading run folders: their schema, records, analysis and cells. Imports no torch and starts nothing."""
