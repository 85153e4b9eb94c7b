"""Benchmarks and scientific controls of this repository; not part of the installed package.

python -m benchmarks [NAME…]
python -m benchmarks.controls
"""
