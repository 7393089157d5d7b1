"""What converters share: short sequences of layers under one name."""
