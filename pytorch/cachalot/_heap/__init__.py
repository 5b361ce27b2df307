"""The process's heap once it serves: its options, limits, budgets, statistics, regions and guard, and the libraries that share it."""
