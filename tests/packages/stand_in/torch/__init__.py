"""A stand-in for torch, with as much as what starts jobs looks at."""
