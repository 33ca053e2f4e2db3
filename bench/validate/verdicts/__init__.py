"""Own verdicts: from findings of cells, by their levels, to exit codes and commands that train what is lacking. Must
not know checks."""
