"""Runtimes behind one seam: `base` has the seam, each engine a file, `process` runs one apart."""
