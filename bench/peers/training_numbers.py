"""The optimizer's numbers, the same on both sides."""
RATE, BETAS, EPS, DECAY = 3e-4, (0.9, 0.999), 1e-8, 0.1
