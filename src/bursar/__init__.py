"""Bursar: wallets that autonomous software agents cannot overspend."""

__version__ = "0.1.0"
