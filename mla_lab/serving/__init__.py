"""Serving as checks: what fits on GPUs, how work is split over them, and what comes out in a second."""
