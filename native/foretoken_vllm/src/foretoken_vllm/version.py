"""Generated from package.json by generate.py; never edited by hand."""

VERSION = "0.1.0"
