"""Pure: where the scheduler could place Pods. Moves (plan) and MIG layouts (advise) ask the same simulation."""
