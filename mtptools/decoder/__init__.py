"""The exact reference decoder: plain and speculative decoding give the same logits bit for bit.

Only this package, and what imports it, loads torch.
"""
