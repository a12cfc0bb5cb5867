"""What every part of Headrace agrees on: tensors, requests, errors, model configuration, wire formats.

This package imports nothing of Headrace's and does no I/O of its own.
"""
