"""Write verdicts for people, GitHub and JUnit. Must not decide anything."""
