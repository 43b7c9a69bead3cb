"""What a Python program on torch gains under torchup: recovery inside the process (torchup.elastic).

Pure Python over torch 2.9 and newer. Under torchrun, or alone, the same program runs without recovery.
"""
