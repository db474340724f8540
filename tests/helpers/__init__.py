"""Environments, policies and callbacks that several tests need."""
