"""Requests to strangers: which addresses they may go to."""
