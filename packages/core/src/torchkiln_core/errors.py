"""The one tree of errors. Nothing else crosses a package border.

KilnError
├── CompileError(stage, node, where, fix)
│   ├── ExportError        the model cannot be captured
│   ├── LoweringError      a pass failed, or left an invalid graph
│   ├── PartitionError     no division satisfies the options
│   ├── ConversionError    a converter cannot write its layers
│   └── BuildError         TensorRT refused the network, the GPU or the target
├── PlanError(fix)
│   ├── PlanTargetMismatch the plan is for another library, version or GPU
│   └── PlanFormatError    the file is truncated, altered or not ours
├── ShapeOutOfProfile(fix) an input's size is outside what was compiled
└── InternalError          torchkiln broke one of its own promises
"""

from __future__ import annotations


class KilnError(Exception):
    """Base of every error that torchkiln raises on purpose."""


class CompileError(KilnError):
    """A model could not be compiled.

    Args:
        message: Subject, what was expected and what was found, in one or two sentences.
        stage: Stage of the compiler that refused, such as ``"export"`` or ``"build"``.
        node: Name of the FX node concerned.
        where: The user's source line.
        fix: What the user can do.
    """

    stage = "compile"

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        node: str | None = None,
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.message = message
        self.stage = stage or type(self).stage
        self.node = node
        self.where = where
        self.fix = fix
        lines = [f"{self.stage}: {message}"]
        if node:
            lines.append(f"  node: {node}")
        if where:
            lines.append(f"  where: {where}")
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


class ExportError(CompileError):
    """The model cannot be captured as a graph of ATen operators."""

    stage = "export"


class LoweringError(CompileError):
    """A lowering pass failed or left an invalid graph."""

    stage = "lowering"


class PartitionError(CompileError):
    """No division of the program satisfies the options."""

    stage = "partition"


class ConversionError(CompileError):
    """A converter cannot express a call in TensorRT layers."""

    stage = "convert"


class BuildError(CompileError):
    """TensorRT refused a network, a target or the GPU; the message carries what TensorRT logged."""

    stage = "build"


class PlanError(KilnError):
    """A plan or a saved program cannot be used.

    Args:
        message: Subject, what was expected and what was found.
        fix: What the user can do.
    """

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        self.message = message
        self.fix = fix
        super().__init__(message if fix is None else f"{message}\n  fix: {fix}")


class PlanTargetMismatch(PlanError):
    """A plan was built for another library, version or GPU than the one at hand."""


class PlanFormatError(PlanError):
    """A file is truncated, altered, of another format version, or not one of ours."""


class ShapeOutOfProfile(KilnError):
    """An input's size lies outside the range that the engine was built for.

    Args:
        message: Subject, what was expected and what was found.
        fix: How to compile for the size.
    """

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        self.message = message
        self.fix = fix
        super().__init__(message if fix is None else f"{message}\n  fix: {fix}")


class InternalError(KilnError):
    """torchkiln broke one of its own promises; please report it with the message."""

    def __init__(self, message: str, *, layer: str | None = None, where: str | None = None) -> None:
        self.layer = layer
        self.where = where
        lines = [message]
        if layer:
            lines.append(f"  layer: {layer}")
        if where:
            lines.append(f"  where: {where}")
        super().__init__("\n".join(lines))
