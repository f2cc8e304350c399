"""Buying from sellers that answer 402: what they offer, and how they are answered."""
