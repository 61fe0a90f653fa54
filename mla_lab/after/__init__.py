"""What came after MLA, each as a small function held against MLA itself."""
