"""One report dictionary (`report.json`) shown four ways: terminal, Markdown, one HTML file, one JSON line.

Nothing here measures or decides; a number that is missing is shown as missing.
"""
