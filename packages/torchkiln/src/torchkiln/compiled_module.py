"""What ``torchkiln.compile`` and ``torchkiln.load`` return: a module that behaves like the user's, only faster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch._guards import detect_fake_mode

from torchkiln.capture import Captured
from torchkiln.compiled_program import CompiledProgram, StitchedProgram
from torchkiln.convention import CallingConvention
from torchkiln.out_of_profile import OR_ELSEWHERE, OR_NOWHERE, Elsewhere, advised
from torchkiln.report import Report
from torchkiln.weights import WeightWatch
from torchkiln_core import ExportError, ShapeOutOfProfile


class CallableProgram(torch.nn.Module):
    """A stitched program behind the calling convention of the user's model.

    Results never require grad. Engine outputs are contiguous; outputs that alias arguments, buffers or one another do so as in eager.

    Args:
        convention: How arguments reach the program and results come back.
        run: The program.
        user_inputs: Names of its inputs, in order.
        read_state: Reads the live tensors of the mutated buffers.
    """

    def __init__(
        self,
        convention: CallingConvention,
        run: StitchedProgram,
        user_inputs: Sequence[str],
        read_state: Callable[[], tuple[torch.Tensor, ...]],
    ) -> None:
        super().__init__()
        # Not modules, so state_dict() and .to() leave alone what engines hold.
        self._run = run
        self._convention = convention
        self._read_state = read_state
        positions = dict(zip(convention.flat_inputs, convention.flat_positions, strict=True))
        buffers = {name: index for index, name in enumerate(convention.buffer_inputs)}
        self._sources = [("argument", positions[name]) if name in positions else ("buffer", buffers[name]) for name in user_inputs]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Engines, weak references and fake tensors cannot be copied or pickled; a half-copied program would share its buffers."""
        raise TypeError(
            f"{type(self).__name__}: a compiled module cannot be copied or pickled; "
            "use torchkiln.save and torchkiln.load, or copy the model and compile the copy"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the compiled model.

        Raises:
            TypeError: Arguments of another structure than at compile time.
            ValueError: A constant argument, dtype, device or rank other than at compile time, or memory shared with a changed argument.
            ExportError: The call is being exported.
            ShapeOutOfProfile: A size outside what was compiled.
        """
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # The flag is the process's: another thread may export while this one calls.
        if torch.compiler.is_exporting() and (torch.compiler.is_dynamo_compiling() or detect_fake_mode((args, kwargs)) is not None):
            raise ExportError("a compiled module cannot be exported again", fix="export or compile the original model")
        flat = self._convention.flatten(args, kwargs)
        state = self._read_state() if self._convention.mutated_buffers else ()
        self._convention.check_memory(flat, state)
        inputs = [flat[index] if kind == "argument" else state[index] for kind, index in self._sources]
        if not torch.is_grad_enabled():
            return self._convention.unflatten(flat, state, self._run(inputs))
        # What torch.no_grad() does, in a sixth of its time.
        torch._C._set_grad_enabled(False)
        try:
            return self._convention.unflatten(flat, state, self._run(inputs))
        finally:
            torch._C._set_grad_enabled(True)


class CompiledModule(CallableProgram):
    """A model compiled in this process.

    Args:
        captured: The captured model.
        program: What was built of it.
        follow: Whether every call looks for changed weights.
    """

    def __init__(self, captured: Captured, program: CompiledProgram, *, follow: bool) -> None:
        super().__init__(captured.convention, program.run, program.partition.program.user_inputs, captured.read_state)
        self._captured = captured
        self._program = program
        self._watch = WeightWatch(captured.read_weights())
        self._follow = follow
        self._own: tuple[Callable[..., Any], ...] = ()
        self._elsewhere: Elsewhere | None = None
        self._lock = threading.Lock()

    def run_as(self, model: Callable[..., Any]) -> None:
        """Runs every call as the user's model, in place of the program."""
        # In a tuple, so that its parameters are not parameters of this module.
        self._own = (model,)

    def send_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Runs calls there whose sizes are outside of what was compiled."""
        self._elsewhere = elsewhere

    @property
    def report(self) -> Report:
        """Segments, rejections and times of the compilation."""
        return self._program.report

    @property
    def parts(self) -> tuple[Captured, CompiledProgram]:
        """What the module was made of; what ``torchkiln.save`` writes."""
        return self._captured, self._program

    @property
    def captured(self) -> Captured:
        """The model as it was captured."""
        return self._captured

    def accepts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the sizes of a call are in the range that was compiled."""
        if self._own:
            return True
        try:
            self._convention.flatten(args, kwargs)
        except ShapeOutOfProfile:
            return False
        return True

    def check_unchanged(self) -> None:
        """Raises ``ValueError`` when weights have changed that this program does not follow: a second one would have others."""
        if not self._follow and (changed := self._watch.changed(self._captured.read_weights())):
            raise ValueError(
                f"weights {', '.join(sorted(changed)[:3])} have changed since the compilation, which is frozen; "
                "call refresh(), or compile with weights='follow'"
            )

    def wait_for_static_engines(self, timeout_s: float | None = None) -> bool:
        """Waits until no static engine is being built (see ``specialize``); ``False`` when one takes longer than ``timeout_s``."""
        return self._program.wait(timeout_s)

    def refresh(self) -> None:
        """Re-reads the weights of the original module and rebuilds the engines that use changed ones.

        Raises:
            ValueError: A weight is gone, has another dtype, device or shape than at compile time, or is no longer shared as it was.
        """
        with self._lock:
            weights = self._captured.read_weights()
            changed = self._watch.changed(weights)
            if changed:
                self._program.replace_weights(weights, changed)
                self._watch.remember(weights)
        if self._elsewhere is not None:
            self._elsewhere.refresh()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As ``CallableProgram.forward``; notices changed weights first where ``weights="follow"``.

        A program without an engine runs as the user's model, which takes whatever the model takes.
        """
        if self._own:
            with torch.no_grad():
                return self._own[0](*args, **kwargs)
        if self._follow:
            self.refresh()
        try:
            return self._call(args, kwargs)
        except ShapeOutOfProfile as error:
            if self._elsewhere is None:
                raise advised(error, OR_ELSEWHERE) from None
            # Nothing of the call has been seen outside: results are written back at its end only.
            return self._elsewhere(error, args, kwargs)


class LoadedModule(CallableProgram):
    """A model read from a ``.kiln`` file; it owns the buffers that the model mutates."""

    def __init__(
        self,
        convention: CallingConvention,
        run: StitchedProgram,
        user_inputs: Sequence[str],
        state: tuple[torch.Tensor, ...],
        report: Report,
    ) -> None:
        super().__init__(convention, run, user_inputs, lambda: state)
        self._report = report

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As ``CallableProgram.forward``."""
        try:
            return self._call(args, kwargs)
        except ShapeOutOfProfile as error:
            raise advised(error, OR_NOWHERE) from None

    @property
    def report(self) -> Report:
        """Segments and rejections of the saved compilation."""
        return self._report
