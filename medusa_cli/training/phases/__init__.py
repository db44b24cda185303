"""The phases of a run, in their order: each takes the values of earlier ones and returns its own. Imports torch."""
