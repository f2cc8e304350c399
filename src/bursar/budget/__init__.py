"""Budgets: ceilings that agents share, up to four above each other."""
