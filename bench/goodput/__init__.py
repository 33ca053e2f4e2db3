"""What a failure rate costs: failure histories, played in virtual time against the production coordinator, for each
recovery strategy. Trains nothing, and knows nothing of run folders."""
