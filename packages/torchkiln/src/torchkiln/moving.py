"""A saved graph on another device: the devices that its calls name are replaced."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx


def move_graph(module: torch.fx.GraphModule, device: torch.device) -> torch.fx.GraphModule:
    """Replaces every device argument of the graph's calls and moves the tensors that it holds; in place."""

    def move(leaf: Any) -> Any:
        return device if isinstance(leaf, torch.device) else leaf

    for node in module.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, move)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, move)
    module.recompile()
    return module.to(device)
