"""What all other packages may use: errors, consoles, files, paths, tables, the machine."""
