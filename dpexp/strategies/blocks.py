"""Blocks: the repeated parts of a model, as the layers of a transformer.

::

    Llama                          blocks_of               units_of
      model
        embed_tokens                                       model.embed_tokens
        layers: ModuleList         model.layers.0 ... 31   model.layers.0 ... 31
        norm                                               model.norm
      lm_head                                              lm_head
"""

from torch import nn

from dpexp.strategies.modules import child_name, inside_containers, is_container


def blocks_of(model: nn.Module) -> list[str]:
    """The names of what the outermost lists of a model have in them; without lists, of its children.

    Modules without parameters are left out.
    """
    found = _parts(model, "")
    names = [name for name, is_listed in found if is_listed] or [name for name, _ in found]
    return [name for name in names if _computes(model.get_submodule(name))]


def units_of(model: nn.Module) -> list[str]:
    """The names of a model's children; of one with a list inside, those of its parts and of the list's."""
    return [name for name, _ in _parts(model, "")]


def _parts(module: nn.Module, prefix: str) -> list[tuple[str, bool]]:
    """The name of each part, and whether a list has it. What is in a Sequential stays together."""
    found = list[tuple[str, bool]]()
    for key, child in module.named_children():
        name, inside = child_name(prefix, key), list[tuple[str, bool]]()
        if is_container(child):
            listed = [*inside_containers(child, "")]
            if any(map(_computes, map(child.get_submodule, listed))):
                inside = [(child_name(name, each), True) for each in listed]
        elif not isinstance(child, nn.Sequential):
            inside = _parts(child, name)
        found += inside if any(is_listed for _, is_listed in inside) else [(name, False)]
    return found


def _computes(module: nn.Module) -> bool:
    """Whether it is called, and has parameters."""
    return is_called(module) and any(True for _ in module.parameters())


def is_called(module: nn.Module) -> bool:
    """Whether it has a forward, as a ParameterList has not."""
    return type(module).forward is not nn.Module.forward
