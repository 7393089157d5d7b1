"""The converters, by operator family. ``torchkiln_converters.registry`` collects every converter that a module here holds."""
