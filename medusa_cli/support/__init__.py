"""What every other room may use: errors, consoles, files, paths, tables, the machine."""
