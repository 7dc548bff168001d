"""Turnout inside other programs: one module or package per host, imported by name, none by `import turnout`."""
