"""Why something is not available inside of a compiled graph, or of a transform."""

NOT_IN_GRAPHS = {
    "grad_input": (
        "inside torch.compile there are no autograd nodes that grad_input could be taken from; "
        "watch the grad_output of the module before"
    ),
    "saved": (
        "inside torch.compile there are no autograd nodes of one module that would keep anything: "
        "a compiled graph keeps its tensors as a whole"
    ),
}
"""Ports that are not available for a module inside a compiled graph, and why."""
IN_TRANSFORM = "it ran inside a torch.func transform, where tensors stand for others"
