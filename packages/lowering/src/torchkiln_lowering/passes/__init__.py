"""The passes that torchkiln runs on every program."""
