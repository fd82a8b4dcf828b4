"""What is remembered between runs: profiles, hourly use, advice that was given and what came of it."""
