"""The command line: one verb a file, each a thin call of the function of the same name in `vengine.api`."""
